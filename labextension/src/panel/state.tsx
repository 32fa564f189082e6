/** A state as people see it: a sign and a word; the colour only repeats them. */

import * as React from 'react';

import { IState, sign } from '../words';

export function State(props: { state: IState; isWordless?: boolean }): JSX.Element {
  const { word, mood } = props.state;
  return (
    <span className={`jdist-state jdist-mod-${mood}`} title={props.isWordless ? word : undefined}>
      <span className="jdist-sign" aria-hidden="true">
        {sign(mood)}
      </span>
      <span className={props.isWordless ? 'jdist-unseen' : ''}>{word}</span>
    </span>
  );
}
