/** The options of nodes that are added, as they are typed: what is wrong with them, and the request that they make. */

import { TranslationBundle } from '@jupyterlab/translation';

import { IAddingOptions, ILaunchOptions } from '../generated/server';
import { COUNT, fieldsOf, launcherWords } from '../start/request';

/** The options as they were typed. */
export interface IAddForm {
  launcher: string;
  count: string;
  hosts: string;
  nproc: string;
  launcher_args: string;
  /** The launcher's own options, by `optionKey`. */
  options: Record<string, string>;
}

/** A field whose text can be wrong. */
export type AddChecked = 'launcher' | 'count' | 'hosts' | 'nproc';

/** Whether the launcher is another one than that of the cluster's start, whose options are taken over. */
export function isOther(form: IAddForm, adding: IAddingOptions): boolean {
  return form.launcher !== adding.launcher;
}

/** The launchers to choose from; that of the cluster comes first. */
export function launchersOf(launch: ILaunchOptions, adding: IAddingOptions): string[] {
  return [adding.launcher, ...launch.launchers.filter(each => each !== adding.launcher)];
}

/** What is wrong with the options, by field: no node can be added with them. */
export function addProblems(
  form: IAddForm,
  launch: ILaunchOptions,
  adding: IAddingOptions,
  trans: TranslationBundle
): Record<AddChecked, string> {
  const { hosts: takesHosts } = fieldsOf(launch, form);
  const [count, nproc] = [form.count.trim(), form.nproc.trim()];
  const wrong = (text: string): string =>
    text && !COUNT.test(text) ? trans.__('A whole number, not “%1”.', text) : '';
  return {
    launcher: launcherProblem(form, launch, adding, trans),
    count: takesHosts ? '' : wrong(count),
    hosts: takesHosts === 'required' && !form.hosts.trim() ? trans.__('Name the host of the new node.') : '',
    nproc: wrong(nproc)
  };
}

function launcherProblem(
  form: IAddForm,
  launch: ILaunchOptions,
  adding: IAddingOptions,
  trans: TranslationBundle
): string {
  if (adding.backend === 'mpi') {
    return trans.__('mpirun has fixed the number of ranks (backend mpi); start a cluster of another size.');
  }
  if (!launch.launchers.includes(form.launcher)) {
    return trans.__('This server does not allow the launcher %1; choose another one.', form.launcher);
  }
  if (fieldsOf(launch, form).cannot_add) {
    return trans.__(
      'The launcher %1 cannot add nodes to a running cluster. Choose join, and run the line that is shown then on the node.',
      form.launcher
    );
  }
  return '';
}

/** The request to the server; null for what the form leaves open, which the server then decides. */
export function addRequest(form: IAddForm, launch: ILaunchOptions, adding: IAddingOptions): Record<string, unknown> {
  const { hosts: takesHosts } = fieldsOf(launch, form);
  const [count, nproc, hosts] = [form.count.trim(), form.nproc.trim(), form.hosts.trim()];
  const words = isOther(form, adding) ? launcherWords(form, launch) : [];
  return {
    launcher: isOther(form, adding) ? form.launcher : null,
    count: !takesHosts && count ? Number(count) : null,
    hosts: (takesHosts && hosts) || null,
    nproc: nproc ? Number(nproc) : null,
    launcher_args: words.length ? words : null
  };
}
