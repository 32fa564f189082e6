/** The form with the options of a start: launcher, nodes, ranks per node, backend, name, and the launcher's own. */

import { TranslationBundle } from '@jupyterlab/translation';
import { HTMLSelect, ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import { ILaunchOptions } from '../generated/server';
import { CheckField, Checking, OptionField, Problem, RanksNote, TextField } from './fields';
import { Checked, fieldsOf, IStartForm, optionKey, problemsOf } from './request';

const BACKENDS = ['gloo', 'nccl', 'cpu:gloo,cuda:nccl'];

/** The body of a dialog; its value is the options. The dialog accepts them only if none is wrong. */
export class StartForm extends ReactWidget {
  constructor(
    private readonly _launch: ILaunchOptions,
    form: IStartForm,
    private readonly _hosts: string[],
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
    const { launchers } = this._launch;
    const trans = this._trans;
    const fields = fieldsOf(this._launch, this._form);
    const perNode = trans.__('A number, or one for each node, such as 4,2');
    const byHosts = fields.hosts ? trans.__('the ranks of each host, else ') : '';
    return (
      <Checking node={this.node}>
        <Problem text={this._error} />
        {this._text('at', trans.__('Where'), trans.__('this computer'), this._about(), this._hosts)}
        {this._form.at.trim() ? this._login() : null}
        {this._select('launcher', trans.__('Launcher'), launchers, null)}
        <Problem text={this._form.at.trim() ? '' : fields.problem} />
        {fields.hosts
          ? this._text('hosts', trans.__('Hosts'), 'alpha,beta', trans.__('With their ranks: a:2,b:2'))
          : null}
        {fields.hosts !== 'required' ? this._text('nnodes', trans.__('Nodes'), fields.nodes, '') : null}
        {this._text('nproc_per_node', trans.__('Ranks per node'), byHosts + trans.__('one per GPU, else 2'), perNode)}
        {this._select('backend', trans.__('Backend'), BACKENDS, this._usual('backend', trans.__('by hardware')))}
        {this._text('name', trans.__('Name'), trans.__('the next free one'), '')}
        {fields.options.map(each => (
          <OptionField
            key={optionKey(this._form.launcher, each.flag)}
            option={each}
            form={this._form}
            trans={trans}
            change={options => this._change({ options })}
          />
        ))}
        {fields.arguments ? this._text('launcher_args', trans.__('Arguments'), '', fields.arguments) : null}
        <RanksNote launch={this._launch} trans={trans} />
      </Checking>
    );
  }

  private _select(key: 'launcher' | 'backend', label: string, values: string[], empty: string | null): JSX.Element {
    return (
      <div className="jdist-field" key={key}>
        <label htmlFor={`jdist-start-${key}`}>{label}</label>
        <HTMLSelect
          id={`jdist-start-${key}`}
          name={key}
          className=""
          value={this._form[key]}
          onChange={event => this._change({ [key]: event.target.value })}
        >
          {empty === null ? null : <option value="">{empty}</option>}
          {values.map(each => (
            <option key={each}>{each}</option>
          ))}
        </HTMLSelect>
      </div>
    );
  }

  /** How jdist is found at the host. */
  private _login(): JSX.Element {
    const trans = this._trans;
    const path = trans.__('A path there, or the name of a conda environment');
    return (
      <>
        {this._text('python', trans.__('Python there'), trans.__('as before, else python3'), path)}
        <CheckField
          name="install"
          label={trans.__('Install jdist')}
          value={this._form.install}
          note={trans.__('If it is missing there: in an environment of its own, with the torch that is there')}
          change={install => this._change({ install })}
        />
      </>
    );
  }

  private _about(): string {
    const host = this._form.at.trim();
    return host
      ? this._trans.__('By ssh. The launcher, hosts and paths below are those of %1.', host)
      : this._trans.__('Or a host that ssh reaches');
  }

  private _text(key: Checked, label: string, otherwise: string, note: string, choices?: string[]): JSX.Element {
    const problem = problemsOf(this._form, this._launch, this._trans)[key];
    const change = (value: string): void => this._change({ [key]: value });
    const text = { name: key, label, value: this._form[key], otherwise: this._usual(key, otherwise), note, problem };
    return <TextField key={key} {...text} choices={choices} change={change} />;
  }

  /** The server's default of an option, else what happens without one. */
  private _usual(key: string, otherwise: string): string {
    const usual = this._launch.defaults[key] as string | number | undefined;
    return usual === undefined ? otherwise : String(usual);
  }

  private _change(change: Partial<IStartForm>): void {
    this._form = { ...this._form, ...change };
    this.update();
  }

  private _form: IStartForm;
}
