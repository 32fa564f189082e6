/** The options of a start as they are typed: what is wrong with them, and the request that they make. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ILoginOptions } from '../api';
import { ILaunchOptions, ILauncherForm, ILauncherOption } from '../generated/server';
import { hostOf } from '../states';

/** Hosts that were used, of which the newest are offered. */
const MOST_RECENT = 8;

/** The options as they were typed. */
export interface IStartForm {
  /** The host, as ssh knows it; empty: the Jupyter server's. */
  at: string;
  /** The Python at that host: a path, or the name of a conda environment; empty: as before, else the usual ones. */
  python: string;
  /** Make an environment with jdist there if it is missing. */
  install: boolean;
  launcher: string;
  nnodes: string;
  nproc_per_node: string;
  backend: string;
  name: string;
  hosts: string;
  launcher_args: string;
  /** The launcher's own options, by `optionKey`. */
  options: Record<string, string>;
}

/** A field whose text can be wrong. */
export type Checked = 'at' | 'python' | 'nnodes' | 'nproc_per_node' | 'name' | 'hosts' | 'launcher_args';

export const EMPTY_FORM: IStartForm = {
  at: '',
  python: '',
  install: false,
  launcher: '',
  nnodes: '',
  nproc_per_node: '',
  backend: '',
  name: '',
  hosts: '',
  launcher_args: '',
  options: {}
};

/** A launcher of which the server says nothing. */
const UNKNOWN: ILauncherForm = { hosts: '', nodes: '', options: [], arguments: '', problem: '', cannot_add: '' };

/** A number of nodes or ranks. */
export const COUNT = /^[1-9]\d{0,5}$/;
const NAME = /^[-_]*[\p{L}\p{N}][\p{L}\p{N}_-]*$/u;
/** A host as ssh knows it: a name of its configuration, or user@host. */
const LOGIN = /^[^\s:-][^\s:]*$/;
/** A host and its ranks, as in jdist/launch/hosts.py. */
const HOST = /^(?:[^@\s:[\]]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^@\s:[\]]+)(?::[1-9]\d{0,5})?$/;
/** A word of a command line; quotes keep spaces together. */
const WORD = /(?:[^\s"']|"[^"]*"|'[^']*')+/g;

/** The fields of the launcher that is chosen. */
export function fieldsOf(launch: ILaunchOptions, form: Pick<IStartForm, 'launcher'>): ILauncherForm {
  return launch.forms[form.launcher] ?? UNKNOWN;
}

/** The name under which the value of an option of a launcher is kept. */
export function optionKey(launcher: string, flag: string): string {
  return `${launcher} ${flag}`;
}

/** What is wrong with the options, by field: nothing can be started with them. */
export function problemsOf(
  form: IStartForm,
  launch: ILaunchOptions,
  trans: TranslationBundle
): Record<Checked, string> {
  const { hosts: takesHosts, arguments: takesArguments } = fieldsOf(launch, form);
  const at = form.at.trim();
  return {
    at: !at || LOGIN.test(at) ? '' : trans.__('A host as in ssh HOST, not “%1”.', at),
    python: at && form.python.trim().startsWith('-') ? trans.__('A path or a name, not “%1”.', form.python.trim()) : '',
    hosts: takesHosts ? problemOfHosts(form, launch, trans) : '',
    nnodes: takesHosts === 'required' ? '' : problemOfNodes(form, launch, trans),
    nproc_per_node: problemOfRanks(form, launch, trans),
    name: !form.name.trim() || NAME.test(form.name.trim()) ? '' : trans.__('Use letters, digits, - and _.'),
    launcher_args: takesArguments ? problemOfWords(form.launcher_args, trans) : ''
  };
}

/** What is wrong with the value of an option of the launcher; empty if nothing is. */
export function problemOfOption(
  { pattern, example }: ILauncherOption,
  value: string,
  trans: TranslationBundle
): string {
  const typed = value.trim();
  if (!typed || !pattern || new RegExp(`^(?:${pattern})$`).test(typed)) {
    return '';
  }
  return example
    ? trans.__('Such as %1, not “%2”.', example, typed)
    : trans.__('One word without spaces, not “%1”.', typed);
}

function problemOfHosts(form: IStartForm, launch: ILaunchOptions, trans: TranslationBundle): string {
  if (isOpen('hosts', form, launch)) {
    return fieldsOf(launch, form).hosts === 'required' ? trans.__('Name the hosts.') : '';
  }
  const hosts = form.hosts.split(',').map(each => each.trim());
  const wrong = hosts.find(each => each && !HOST.test(each));
  return wrong ? trans.__('A host, or a host and its ranks as alpha:2; not “%1”.', wrong) : '';
}

/** Whether neither the form nor the server's defaults say it. */
function isOpen(key: Checked, form: IStartForm, launch: ILaunchOptions): boolean {
  return !form[key].trim() && launch.defaults[key] === undefined;
}

function problemOfNodes(form: IStartForm, launch: ILaunchOptions, trans: TranslationBundle): string {
  const nnodes = form.nnodes.trim();
  if (nnodes && !COUNT.test(nnodes)) {
    return trans.__('A whole number such as 2, not “%1”.', nnodes);
  }
  const isKnown = fieldsOf(launch, form).nodes === '1' || form.nproc_per_node.includes(',');
  return launch.max_ranks && !isKnown && isOpen('nnodes', form, launch)
    ? trans.__('A number: this server limits the number of ranks.')
    : '';
}

function problemOfRanks(form: IStartForm, launch: ILaunchOptions, trans: TranslationBundle): string {
  const [nnodes, perNode] = [form.nnodes.trim(), form.nproc_per_node.trim()];
  const counts = perNode.split(',').map(each => each.trim());
  if (!perNode) {
    return launch.max_ranks && isOpen('nproc_per_node', form, launch)
      ? trans.__('A number: this server limits the number of ranks.')
      : '';
  }
  if (!counts.every(each => COUNT.test(each))) {
    return trans.__('A whole number such as 2, or one for each node such as 4,2; not “%1”.', perNode);
  }
  return counts.length > 1 && COUNT.test(nnodes) && Number(nnodes) !== counts.length
    ? trans.__('This gives the ranks of %1 nodes, but there are %2.', counts.length, nnodes)
    : problemOfLimit(counts.map(Number), form, launch, trans);
}

/** Whether more ranks would run than the server allows, as far as the form says how many. */
function problemOfLimit(counts: number[], form: IStartForm, launch: ILaunchOptions, trans: TranslationBundle): string {
  const { max_ranks: most, ranks_here: here, defaults } = launch;
  const { nodes, hosts } = fieldsOf(launch, form);
  const usual = Number(hosts === 'required' ? 1 : (defaults.nnodes ?? (COUNT.test(nodes) ? nodes : 1))); // at least
  const count = counts.length > 1 ? 1 : COUNT.test(form.nnodes.trim()) ? Number(form.nnodes) : usual;
  const total = here + count * counts.reduce((sum, each) => sum + each, 0);
  return most && total > most
    ? trans.__('This server allows %1 ranks in all, and there would be %2.', most, total)
    : '';
}

/** The request to the server; null for what the form leaves open, which the server then decides. */
export function startRequest(form: IStartForm, launch: ILaunchOptions): Record<string, unknown> {
  const { hosts: takesHosts } = fieldsOf(launch, form);
  const { launcher, backend } = form;
  const [nnodes, perNode, hosts] = [form.nnodes.trim(), form.nproc_per_node.trim(), form.hosts.trim()];
  const words = launcherWords(form, launch);
  return {
    at: form.at.trim() || null,
    launcher: launcher || null,
    nnodes: takesHosts !== 'required' && nnodes ? Number(nnodes) : null,
    nproc_per_node: !perNode ? null : COUNT.test(perNode) ? Number(perNode) : perNode,
    backend: backend || null,
    name: form.name.trim() || null,
    hosts: (takesHosts && hosts) || null,
    launcher_args: words.length ? words : null
  };
}

/** How the server logs in to the host of the start. */
export function loginOptions({ python, install }: IStartForm): ILoginOptions {
  return { python: python.trim(), install };
}

/** The hosts to choose from: those of ssh's configuration, and those that were used before, without doubles. */
export function hostChoices(configured: string[], recent: string[], clusters: string[]): string[] {
  return [...new Set([...recent, ...clusters.map(hostOf).filter(Boolean), ...configured])];
}

/** The recent hosts once this one has been used: the newest first. */
export function withRecent(recent: string[], host: string): string[] {
  return host ? [host, ...recent.filter(each => each !== host)].slice(0, MOST_RECENT) : recent;
}

/** What is wrong with the words of a command line; empty if nothing is. */
export function problemOfWords(text: string, trans: TranslationBundle): string {
  return /["']/.test(text.replace(/"[^"]*"|'[^']*'/g, '')) ? trans.__('A quote is not closed.') : '';
}

/** The words for the launcher: its options that are given, and the further arguments. */
export function launcherWords(
  form: Pick<IStartForm, 'launcher' | 'options' | 'launcher_args'>,
  launch: ILaunchOptions
): string[] {
  const { options, arguments: takesArguments } = fieldsOf(launch, form);
  const words = options.flatMap(({ flag }) => {
    const value = (form.options[optionKey(form.launcher, flag)] ?? '').trim();
    return value ? [flag, value] : [];
  });
  return [...words, ...(takesArguments ? splitWords(form.launcher_args) : [])];
}

/** The words of a command line, as a shell splits them: `-a "b c"` has two. */
export function splitWords(text: string): string[] {
  return (text.match(WORD) ?? []).map(word => word.replace(/"([^"]*)"|'([^']*)'/g, '$1$2'));
}
