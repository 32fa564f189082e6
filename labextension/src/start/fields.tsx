/** What the forms of dialogs are made of. */

import * as React from 'react';

/** A text field: its label, what happens where it is left empty, and a note. */
export interface IText {
  name: string;
  label: string;
  value: string;
  otherwise?: string;
  note?: string;
  problem?: string;
  change: (value: string) => void;
}

/** A text field. Its problem is shown once something was typed, and invalid fields keep the dialog from accepting. */
export function TextField({ name, label, value, otherwise, note, problem, change }: IText): JSX.Element {
  const [id, about] = [React.useId(), React.useId()];
  const isWrong = !!problem && !!value.trim();
  return (
    <div className="jdist-field">
      <label htmlFor={id}>{label}</label>
      <input
        id={id}
        type="text"
        name={name}
        className="jp-mod-styled"
        value={value}
        placeholder={otherwise}
        aria-invalid={isWrong}
        aria-describedby={about}
        ref={node => node?.setCustomValidity(problem ?? '')}
        onChange={event => change(event.target.value)}
      />
      <small id={about} role={isWrong ? 'alert' : undefined} className={isWrong ? 'jdist-problem' : ''}>
        {problem || note}
      </small>
    </div>
  );
}

/** Has the dialog check its fields again whenever they are drawn: it does so after each event of this kind. */
export function Checking({ node, children }: { node: HTMLElement; children: React.ReactNode }): JSX.Element {
  React.useEffect(() => {
    node.dispatchEvent(new Event('input', { bubbles: true }));
  });
  return <>{children}</>;
}
