/** The form for nodes that are added to a cluster: by which launcher, how many or on which hosts, ranks per node. */

import { TranslationBundle } from '@jupyterlab/translation';
import { HTMLSelect, ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import { IAddingOptions, ILaunchOptions } from '../generated/server';
import { Checking, OptionField, Problem, RanksNote, TextField } from '../start/fields';
import { fieldsOf, optionKey, problemOfWords } from '../start/request';
import { AddChecked, addProblems, IAddForm, isOther, launchersOf } from './request';

/** The body of a dialog; its value is the options. The dialog accepts them only if none is wrong. */
export class AddForm extends ReactWidget {
  constructor(
    private readonly _launch: ILaunchOptions,
    private readonly _adding: IAddingOptions,
    form: IAddForm | null,
    private readonly _error: string,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-form');
    const empty = { launcher: _adding.launcher, count: '', hosts: '', nproc: '', launcher_args: '', options: {} };
    this._form = form ?? empty;
  }

  getValue(): IAddForm {
    return this._form;
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    const fields = fieldsOf(this._launch, this._form);
    const isNew = isOther(this._form, this._adding) && !this._problems.launcher;
    return (
      <Checking node={this.node}>
        <Problem text={this._error} />
        {this._launcher()}
        <Problem text={fields.problem} />
        {fields.hosts
          ? this._text('hosts', trans.__('Hosts'), 'gamma,delta', trans.__('With their ranks: c:2,d:2'))
          : this._text('count', trans.__('Nodes'), '1', trans.__('One is added after the other.'))}
        {this._text('nproc', trans.__('Ranks per node'), trans.__('%1, as the last node', this._adding.nproc), '')}
        {isNew &&
          fields.options.map(each => (
            <OptionField
              key={optionKey(this._form.launcher, each.flag)}
              option={each}
              form={this._form}
              trans={trans}
              change={options => this._change({ options })}
            />
          ))}
        {isNew && fields.arguments ? this._text('launcher_args', trans.__('Arguments'), '', fields.arguments) : null}
        <p className="jdist-note">
          {trans.__(
            'All other ranks keep their numbers and variables. It is possible only while no cell runs: the process group is formed again.'
          )}
        </p>
        <RanksNote launch={this._launch} trans={trans} />
      </Checking>
    );
  }

  private _launcher(): JSX.Element {
    const { launcher } = this._form;
    const trans = this._trans;
    const problem = this._problems.launcher;
    const label = (each: string): string =>
      each === this._adding.launcher ? trans.__('%1, as the cluster was started', each) : each;
    return (
      <div className="jdist-field" ref={node => node?.querySelector('select')?.setCustomValidity(problem)}>
        <label htmlFor="jdist-add-launcher">{trans.__('Launcher')}</label>
        <HTMLSelect
          id="jdist-add-launcher"
          name="launcher"
          className=""
          value={launcher}
          aria-describedby="jdist-add-launcher-problem"
          onChange={event => this._change({ launcher: event.target.value })}
        >
          {launchersOf(this._launch, this._adding).map(each => (
            <option key={each} value={each}>
              {label(each)}
            </option>
          ))}
        </HTMLSelect>
        <small
          id="jdist-add-launcher-problem"
          role={problem ? 'alert' : undefined}
          className={problem ? 'jdist-problem' : ''}
        >
          {problem}
        </small>
      </div>
    );
  }

  private _text(key: AddChecked | 'launcher_args', label: string, otherwise: string, note: string): JSX.Element {
    const problem =
      key === 'launcher_args' ? problemOfWords(this._form.launcher_args, this._trans) : this._problems[key];
    const change = (value: string): void => this._change({ [key]: value });
    const text = { name: key, label, value: this._form[key], otherwise, note, problem };
    return <TextField key={key} {...text} change={change} />;
  }

  private get _problems(): Record<AddChecked, string> {
    return addProblems(this._form, this._launch, this._adding, this._trans);
  }

  private _change(change: Partial<IAddForm>): void {
    this._form = { ...this._form, ...change };
    this.update();
  }

  private _form: IAddForm;
}
