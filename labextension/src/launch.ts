/** What the server says of launchers, and of nodes that are added by one (jdist/launch/form.py, jdist/server/starts.py). */

/** An option of a launcher that has a field of its own. */
export interface ILauncherOption {
  flag: string;
  label: string;
  example: string;
  note: string;
  /** A regular expression that the whole value matches; empty or absent: anything. */
  pattern?: string;
}

/** The fields of a launcher, as in jdist/launch/form.py. */
export interface ILauncherForm {
  hosts: '' | 'optional' | 'required';
  /** How many nodes there are where the user leaves that open. */
  nodes: string;
  options: ILauncherOption[];
  /** What other words the launcher takes; empty: none. */
  arguments: string;
  /** Why the launcher cannot be used here; empty if nothing is known against it. */
  problem: string;
  /** Why no node can be added with it to a running cluster; empty if that is possible. */
  cannot_add: string;
}

/** The options of a start. */
export interface ILaunch {
  /** The default comes first. */
  launchers: string[];
  forms: Record<string, ILauncherForm>;
  /** The limit for all clusters together; 0: there is none. */
  max_ranks: number;
  ranks_here: number;
  defaults: Record<string, string | number>;
}

/** By what a node is added to a cluster unless the user says otherwise, and how many ranks its last one has. */
export interface IAddingOptions {
  launcher: string;
  nproc: number;
  backend: string;
}

/** Nodes that are being added, or have just been, from a browser; `done` of `count` have joined. */
export interface IAdding {
  number: number;
  state: 'adding' | 'added' | 'failed';
  /** What it waits for, or why it has failed. */
  text: string;
  done: number;
  count: number;
}
