/** The form with the options of a start: launcher, nodes, ranks per node, backend, name. */

import { TranslationBundle } from '@jupyterlab/translation';
import { HTMLSelect, ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import { ILaunch } from '../api';

/** The options as they were typed. */
export interface IStartForm {
  launcher: string;
  nnodes: string;
  nproc_per_node: string;
  backend: string;
  name: string;
  hosts: string;
  launcher_args: string;
}

export const EMPTY_FORM: IStartForm = {
  launcher: '',
  nnodes: '',
  nproc_per_node: '',
  backend: '',
  name: '',
  hosts: '',
  launcher_args: ''
};

const BACKENDS = ['gloo', 'nccl', 'cpu:gloo,cuda:nccl'];
const LOCAL = 'local';
const SSH = 'ssh';

/** The request to the server; null for what the form leaves open, which the server then decides. */
export function startRequest(form: IStartForm): Record<string, unknown> {
  const { launcher, nnodes, nproc_per_node, backend, name, hosts, launcher_args } = form;
  const per = nproc_per_node.trim();
  return {
    launcher: launcher || null,
    nnodes: launcher === SSH && hosts.trim() ? null : nnodes.trim() ? Number(nnodes) : null,
    nproc_per_node: !per ? null : /^\d+$/.test(per) ? Number(per) : per,
    backend: backend || null,
    name: name.trim() || null,
    hosts: launcher === SSH && hosts.trim() ? hosts.trim() : null,
    launcher_args: launcher !== LOCAL && launcher_args.trim() ? launcher_args.trim().split(/\s+/) : null
  };
}

/** The body of a dialog; its value is the options. */
export class StartForm extends ReactWidget {
  constructor(
    private readonly _launch: ILaunch,
    form: IStartForm,
    private readonly _error: string,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-form');
    const known = _launch.launchers.includes(form.launcher) ? form.launcher : (_launch.launchers[0] ?? '');
    this._form = { ...form, launcher: known };
  }

  getValue(): IStartForm {
    return this._form;
  }

  protected render(): JSX.Element {
    const { launchers, defaults } = this._launch;
    const trans = this._trans;
    const form = this._form;
    const usual = (key: string, otherwise: string): string =>
      defaults[key] === undefined ? otherwise : String(defaults[key]);
    return (
      <>
        {this._error ? (
          <p className="jdist-error" role="alert">
            {this._error}
          </p>
        ) : null}
        {this._field(
          'launcher',
          trans.__('Launcher'),
          <HTMLSelect {...this._on('launcher')} className="">
            {launchers.map(each => (
              <option key={each}>{each}</option>
            ))}
          </HTMLSelect>
        )}
        {form.launcher === SSH
          ? this._text(
              'hosts',
              trans.__('Hosts'),
              'alpha,beta',
              trans.__('Host names for ssh, or a file that lists them')
            )
          : this._text(
              'nnodes',
              trans.__('Nodes'),
              usual('nnodes', form.launcher === LOCAL ? '1' : trans.__('all')),
              ''
            )}
        {this._text(
          'nproc_per_node',
          trans.__('Ranks per node'),
          usual('nproc_per_node', trans.__('one per GPU, else one per core')),
          trans.__('A number; one for each node as 4,2')
        )}
        {this._field(
          'backend',
          trans.__('Backend'),
          <HTMLSelect {...this._on('backend')} className="">
            <option value="">{usual('backend', trans.__('by hardware'))}</option>
            {BACKENDS.map(each => (
              <option key={each}>{each}</option>
            ))}
          </HTMLSelect>
        )}
        {this._text('name', trans.__('Name'), trans.__('the next free one'), '')}
        {form.launcher !== LOCAL &&
          this._text('launcher_args', trans.__('Arguments'), '', trans.__('For the launcher, such as --partition=gpu'))}
        {this._limits()}
      </>
    );
  }

  private _limits(): JSX.Element | null {
    const { max_ranks, ranks_here } = this._launch;
    return max_ranks ? (
      <p className="jdist-note">
        {this._trans.__(
          'This server allows %1 ranks in all your clusters together; %2 are running.',
          max_ranks,
          ranks_here
        )}
      </p>
    ) : null;
  }

  private _text(key: keyof IStartForm, label: string, placeholder: string, note: string): JSX.Element {
    return this._field(key, label, <input type="text" placeholder={placeholder} {...this._on(key)} />, note);
  }

  private _field(key: keyof IStartForm, label: string, control: JSX.Element, note = ''): JSX.Element {
    return (
      <label key={key}>
        <span>{label}</span>
        {control}
        {note ? <small>{note}</small> : null}
      </label>
    );
  }

  private _on(key: keyof IStartForm): object {
    return {
      name: key,
      className: 'jp-mod-styled',
      value: this._form[key],
      onChange: (event: React.ChangeEvent<HTMLInputElement | HTMLSelectElement>) => {
        this._form = { ...this._form, [key]: event.target.value };
        this.update();
      }
    };
  }

  private _form: IStartForm;
}
