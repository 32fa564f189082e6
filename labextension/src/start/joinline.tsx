/** What the user has to run on a node, so that it joins. */

import { Clipboard } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

/** As `Api.instructions` has it. */
export interface IInstructions {
  about: string;
  line: string;
}

/** The line, with a button that copies it. */
export function JoinLine({ about, line, trans }: IInstructions & { trans: TranslationBundle }): JSX.Element {
  const [copied, setCopied] = React.useState('');
  const copy = (): void => {
    Clipboard.copyToSystem(line);
    setCopied(line);
  };
  return (
    <div className="jdist-copyable">
      <p>{about}</p>
      <pre tabIndex={0}>{line}</pre>
      <button className="jp-mod-styled" onClick={copy}>
        {copied === line ? trans.__('Copied') : trans.__('Copy')}
      </button>
    </div>
  );
}
