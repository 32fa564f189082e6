/** What the forms of dialogs are made of. */

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { ILaunchOptions, ILauncherOption } from '../generated/server';
import { IStartForm, optionKey, problemOfOption } from './request';

/** Why what the form asks for cannot be, or could not be done; nothing if `text` is empty. */
export function Problem({ text }: { text: string }): JSX.Element | null {
  return text ? (
    <p className="jdist-error" role="alert">
      {text}
    </p>
  ) : null;
}

/** How many ranks the server allows, if it limits them. */
export function RanksNote({ launch, trans }: { launch: ILaunchOptions; trans: TranslationBundle }): JSX.Element | null {
  const { max_ranks, ranks_here } = launch;
  return max_ranks ? (
    <p className="jdist-note">
      {trans.__('This server allows %1 ranks in all your clusters together; %2 are running.', max_ranks, ranks_here)}
    </p>
  ) : null;
}

/** A text field: its label, what happens where it is left empty, and a note. */
export interface IText {
  name: string;
  label: string;
  value: string;
  otherwise?: string;
  note?: string;
  problem?: string;
  /** What can be chosen; other text is allowed. */
  choices?: string[];
  change: (value: string) => void;
}

/** A text field. Its problem is shown once something was typed, and invalid fields keep the dialog from accepting. */
export function TextField({ name, label, value, otherwise, note, problem, choices, change }: IText): JSX.Element {
  const [id, about, list] = [React.useId(), React.useId(), React.useId()];
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
        list={choices && list}
        aria-invalid={isWrong}
        aria-describedby={about}
        ref={node => node?.setCustomValidity(problem ?? '')}
        onChange={event => change(event.target.value)}
      />
      {choices && (
        <datalist id={list}>
          {choices.map(each => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
      <small id={about} role={isWrong ? 'alert' : undefined} className={isWrong ? 'jdist-problem' : ''}>
        {problem || note}
      </small>
    </div>
  );
}

/** A box to check, with a note. */
export function CheckField({
  name,
  label,
  value,
  note,
  change
}: Pick<IText, 'name' | 'label' | 'note'> & { value: boolean; change: (value: boolean) => void }): JSX.Element {
  const [id, about] = [React.useId(), React.useId()];
  return (
    <div className="jdist-field">
      <label htmlFor={id}>{label}</label>
      <input
        id={id}
        type="checkbox"
        name={name}
        checked={value}
        aria-describedby={about}
        onChange={event => change(event.target.checked)}
      />
      <small id={about}>{note}</small>
    </div>
  );
}

/** A field for an option of the launcher that is chosen. */
export function OptionField({
  option,
  form,
  trans,
  change
}: {
  option: ILauncherOption;
  form: Pick<IStartForm, 'launcher' | 'options'>;
  trans: TranslationBundle;
  change: (options: IStartForm['options']) => void;
}): JSX.Element {
  const { flag, label, example, note } = option;
  const key = optionKey(form.launcher, flag);
  const value = form.options[key] ?? '';
  const text = { name: flag, label, value, note, problem: problemOfOption(option, value, trans) };
  return (
    <TextField
      {...text}
      otherwise={example ? trans.__('such as %1', example) : ''}
      change={changed => change({ ...form.options, [key]: changed })}
    />
  );
}

/** Has the dialog check its fields again whenever they are drawn: it does so after each event of this kind. */
export function Checking({ node, children }: { node: HTMLElement; children: React.ReactNode }): JSX.Element {
  React.useEffect(() => {
    node.dispatchEvent(new Event('input', { bubbles: true }));
  });
  return <>{children}</>;
}
