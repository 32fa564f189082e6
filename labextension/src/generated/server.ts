/** What the server sends, as the Structs of jdist say it; written by: make types */

export type Action =
  | 'attach'
  | 'doctor'
  | 'invite'
  | 'list'
  | 'start'
  | 'status'
  | 'stop'
  | 'sync'
  | 'continue'
  | 'debug'
  | 'pause'
  | 'where'
  | 'pull'
  | 'push'
  | 'restore'
  | 'interrupt'
  | 'logs'
  | 'remove'
  | 'restart'
  | 'run'
  | 'run_cell';

export type Comparison = '' | 'alike' | 'differs' | 'equal';

export type Quantity = 'cpu' | 'gpu' | 'gpu_memory' | 'memory' | 'received' | 'sent';

export type ActivityKind = 'collective' | 'idle' | 'paused' | 'python' | 'silent' | 'store' | 'transfer';

export type PauseReason = 'breakpoint' | 'failure' | 'next_call' | 'request' | 'step';

export type StepKind = 'continue' | 'next' | 'next_call' | 'return' | 'step' | 'until';

export type VerdictKind = 'cycle' | 'lost' | 'mismatch' | 'missing' | 'slow' | 'store' | 'transfer';

/** An event as events.yaml describes it. */
export interface IClusterEvent {
  action: 'changed' | 'gone';
  name: string;
  cluster: IClusterSnapshot;
  ranks: IRankRow[];
  notices: string[];
}

/** All that a chart shows. */
export interface IResourcesSnapshot {
  /** How far back it reaches. */
  seconds: number;
  nodes: INodeSeries[];
  runs: IRunMark[];
  /** Sentences about nodes of which nothing is known. */
  missing: string[];
}

/** All names, and what the rows do not say. */
export interface IVariablesSnapshot {
  variables: IVariableRow[];
  notes: string[];
}

/** The stacks of paused ranks as one tree, and what the other ranks do. */
export interface IStacksSnapshot {
  stacks: IBranch[];
  others: IRanksText[];
}

/** How a terminal is attached to a rank. */
export interface IConsoleCommands {
  hostname: string;
  /** For a terminal on that host. */
  command: string;
  /** For a terminal of the Jupyter server; "" if it cannot reach the rank, for `reason`. */
  command_here: string;
  reason: string;
}

/** What a browser can choose from for a start: hosts, launchers, the fields of each one's form, limits, defaults. */
export interface ILaunchOptions {
  /** The default comes first. */
  launchers: string[];
  forms: Record<string, ILauncherForm>;
  /** The limit for all clusters together; 0: there is none. */
  max_ranks: number;
  ranks_here: number;
  defaults: Record<string, unknown>;
  /** Those that the user's configuration of ssh names. */
  hosts: string[];
}

/** The defaults for adding a node: the cluster's launcher and backend, and the number of ranks on its last node. */
export interface IAddingOptions {
  launcher: string;
  nproc: number;
  backend: string;
}

/** How far a login to another host is. */
export interface ILoginState {
  state: 'asks' | 'connecting' | 'open';
  /** ssh's own words: a question, or what it waits for (a key's touch); an installation's line. */
  text: string;
  /** The question's number, which belongs to the answer. */
  question: number;
  /** What is typed is not shown. */
  is_secret: boolean;
}

/** A run. `seconds`: since its start, or in all once it is done. */
export interface IRunJson {
  version: 1;
  run: number;
  /** Its name. */
  cluster: string;
  state: 'done' | 'running' | 'waiting';
  seconds: number;
  ranks: IRankStates[];
  segments?: (ITextSegment | IDisplaySegment | IGapSegment)[];
  /** The first cause first, echoes last. */
  failures?: IFailureJson[];
  /** The number of distinct failures that are left out. */
  more_failures?: number;
  verdict?: IVerdictJson;
  notices?: string[];
  /** The rank to show first; null: all ranks. */
  lead?: number;
  /** Where ranks are paused; `state` is "running" then, too. */
  paused?: IPauseJson[];
  /** In which frames the cell runs, if not in the ranks' own names. */
  frames?: string;
  /** Tells apart clusters of the same name. */
  cluster_id?: string;
}

/**
 * A cluster. Of one that cannot be attached to, only the name, the state and the reason are known.
 *
 * `state` is the world's phase as its controller reports it (gathering, forming, ready, failed, stopping), or
 * starting: a start from a browser of which no more is known; silent: it does not answer; foreign: it has another
 * version; orphaned: its controller is gone. Of a cluster of another host, also: connecting: the server logs in there;
 * unreachable: it could not; reconnecting: the login is broken, and another is tried again and again.
 */
export interface IClusterSnapshot {
  name: string;
  /** Its id, which no other cluster has; "" if it is not known. */
  cluster: string;
  state: string;
  reason: string;
  version: string;
  /** Seconds since it was so, for a cluster that does not answer any more. */
  age?: number;
  /** What a start from a browser waits for; null if that start has failed. */
  starting?: string | null;
  /** Nodes that are, or have just been, added from a browser. */
  adding?: IAddingRow;
  /** A node is waited for which the user has to start. */
  has_instructions?: boolean;
  backend?: string;
  generation?: number;
  nnodes?: number;
  world_size?: number;
  /** How many ranks are up. */
  ready?: number;
  nodes?: INodeRow[];
  groups?: IGroupRow[];
  mesh?: IMesh | null;
  left_out?: string[];
  ranks?: IRankRow[];
  runs?: IRunRow[];
  cell_groups?: IGroupSpec[];
  verdicts?: IVerdictRow[];
  silences?: string[];
}

/** A rank's row. Sizes in bytes, shares from 0 to 1. */
export interface IRankRow {
  rank: number;
  node: number;
  local_rank: number;
  hostname: string;
  pid: number;
  state: string;
  run: number;
  last_line: string;
  /** It was replaced, and its earlier variables are lost. */
  is_fresh: boolean;
  /** Why its last process ended; "" if it still has its first. */
  death: string;
  /** Seconds since then. */
  death_age: number;
  /** Where it is paused. */
  paused?: IPauseRow;
  /** It was asked to pause, and has not yet. */
  is_pausing?: boolean;
  device: string;
  /** Bytes of memory that its process uses; null as long as the rank has not reported it. */
  rss: number | null;
  doing: IActivityRow | null;
  progress: IProgressRow[];
  /** The number and name of its GPU. */
  gpu_name?: string;
  /** Bytes of memory that this GPU has; 0 where the driver does not report it. */
  gpu_total?: number;
  /** Bytes of it that all processes use. */
  gpu_used?: number;
  /** Bytes that this rank uses; null where the driver does not report it. */
  gpu_own?: number | null;
  /** Of the recent time; null for an idle rank, or if it is not known. */
  gpu_busy?: number | null;
}

/** What a node and its ranks have used; see `NodeUsage`. */
export interface INodeSeries {
  node: number;
  hostname: string;
  cores: number;
  memory_total: number;
  gpus: number;
  /** 0 if it is not known. */
  gpu_memory_total: number;
  /** When each number was measured, in seconds before the answer; descending, at any distance. */
  ages: number[];
  /** Of the node as a whole. */
  series: Partial<Record<Quantity, (number | null)[]>>;
  ranks: IRankSeries[];
}

/** A run, with the ages of its begin and end. */
export interface IRunMark {
  run: number;
  ranks: string;
  began: number;
  /** null while it is active. */
  ended: number | null;
}

/** A name; see `Variable`. */
export interface IVariableRow {
  name: string;
  comparison: Comparison;
  missing: string;
  size: number;
  variants: IVariantRow[];
}

/** A frame that some ranks have in common, and the frames that it called there. */
export interface IBranch {
  frame: IStackFrame;
  ranks: number[];
  /** Ranks whose cells run in this frame. */
  chosen: number[];
  children: IBranch[];
}

/** A text that is the same on these ranks. */
export interface IRanksText {
  ranks: string;
  text: string;
}

/** The fields besides those that every launcher has: ranks per node, backend and name. */
export interface ILauncherForm {
  /** Whether hosts can be named; if required, they say how many nodes. */
  hosts: '' | 'optional' | 'required';
  /** How many nodes there are where the user leaves that open. */
  nodes: string;
  options: ILauncherOption[];
  /** What other words it takes; "": none. */
  arguments: string;
  /** Why no node can be added with it to a running cluster; "" if that is possible. */
  cannot_add: string;
  /** Why this launcher cannot be used here; "" if nothing is known against it. */
  problem: string;
}

/** Ranks in one state. `seconds` from the cell's start there to its end there, rounded; null while it runs. */
export interface IRankStates {
  ranks: string;
  state: 'error' | 'interrupted' | 'lost' | 'running' | 'timeout' | 'value' | 'waiting';
  seconds?: number;
}

/**
 * Lines that these ranks wrote, with ANSI colours.
 *
 * If they differ in a number, `text` has those of all, `loss 0.1 | 0.2`, and `texts` are the ranks' own: line n
 * of `text` stands for line n of each of these. The numbers of up to eight ranks stand in the order of the ranks, so
 * it can be told whose each is. Those of more are a range, which opens to show them by rank.
 */
export interface ITextSegment {
  kind: 'text';
  ranks: string;
  text: string;
  /** Of the progress bars of very many ranks, the slowest. */
  texts?: IRankText[];
  stderr?: boolean;
}

/** A display, or with `is_result` a cell's last value: `piece` if it is there, else `data` by mime type. */
export interface IDisplaySegment {
  kind: 'shown';
  ranks: string;
  /** Of the HTML, marked. */
  piece?: number;
  data?: Record<string, unknown>;
  metadata?: Record<string, unknown>;
  is_result?: boolean;
}

/** Something was left out here: how much, of whom, and where it is. Without `ranks` it concerns all. */
export interface IGapSegment {
  kind: 'gap';
  text: string;
  ranks?: string;
}

/** Ranks on which the same went wrong. `is_echo`: most likely the effect of the first failure. */
export interface IFailureJson {
  ranks: string;
  state: 'error' | 'interrupted' | 'lost' | 'running' | 'timeout' | 'value' | 'waiting';
  headline: string;
  /** `line 5: dist.all_reduce(t)` */
  place?: string;
  /** The marked piece of the HTML. */
  traceback?: number;
  /** The traceback is so short that it stands open if this is the first that is shown. */
  stands_open?: boolean;
  is_echo?: boolean;
  remedies?: IRemedy[];
}

/** Why the run makes no progress or, without remedies, did not finish. */
export interface IVerdictJson {
  headline: string;
  is_certain: boolean;
  details?: string[];
  remedies?: IRemedy[];
  /** It stands below the failures, one of which is its cause. */
  follows_failures?: boolean;
}

/** Ranks that are paused at the same place, in the same way. */
export interface IPauseJson {
  ranks: string;
  reason: PauseReason;
  function: string;
  /** From 1. */
  line: number;
  /** Text of the line. */
  source?: string;
  /** Path on the ranks' nodes; "" for a cell. */
  file?: string;
  /** The run whose cell the code is from; 0 if it is not from a cell. */
  of_run?: number;
  /** The call that they are about to begin, after a step to the next one. */
  about_to?: string;
  /** The value that they are about to return, after a step to the end of a function. */
  returns?: string;
  /** The thread, if it is not the main one. */
  thread?: string;
  /** For a failure. */
  error?: string;
}

/** Nodes that are being added from a browser, of which `done` of `count` have joined. */
export interface IAddingRow {
  /** By which the browser that asked for it knows it. */
  number: number;
  state: 'added' | 'adding' | 'failed';
  /** What it waits for, or why it has failed. */
  text: string;
  done: number;
  count: number;
}

/** A node; its hostname is "" if none of its agents is here. */
export interface INodeRow {
  node: number;
  hostname: string;
  is_here: boolean;
  is_unreachable: boolean;
  ranks: number[];
}

/** A named group. */
export interface IGroupRow {
  name: string;
  ranks: number[];
}

/** Named dimensions over the world's ranks in row-major order, as `init_device_mesh` lays them. */
export interface IMesh {
  names: string[];
  sizes: number[];
}

/** An unfinished run; `done` of its `count` ranks have ended. */
export interface IRunRow {
  number: number;
  state: string;
  ranks: string;
  count: number;
  done: number;
  seconds: number;
}

/** A process group as it was requested: global ranks, backend (null: the world's), name. */
export interface IGroupSpec {
  ranks: number[];
  backend: string | null;
  name: string;
  /** All parts, if split_group of the world made it; no `ranks` then. */
  splits: number[][];
  /** It has lost a member for good and is not created again, but counted: torch numbers groups. */
  is_gone: boolean;
  /** Seconds for a collective of its own, as the user asked for; 0: no limit. */
  timeout: number;
}

/** Why a run makes no progress, and the suggested actions. */
export interface IVerdictRow {
  run: number;
  kind: VerdictKind;
  is_certain: boolean;
  headline: string;
  details: string[];
  responsible: number[];
  waiting: number[];
  remedies: IRemedy[];
}

/** Where a rank is paused: in `run`, at a line of the cell of run `of_run`, or of `file` if that is 0. */
export interface IPauseRow {
  run: number;
  reason: PauseReason;
  /** All of this in words. */
  text: string;
  function: string;
  line: number;
  file: string;
  of_run: number;
}

/** What a rank's main thread does, and in which collective it is. */
export interface IActivityRow {
  kind: ActivityKind;
  op: string;
  /** The collective's sequence number in its group; 0 if it is in none. */
  number: number;
  /** The name of that group; "" if it is not known. */
  group: string;
  line: number | null;
  source: string;
  seconds: number;
  cpu: number | null;
  waits_for: string;
  process: string;
}

/** How far a rank is in a group: the numbers of its last collective there. */
export interface IProgressRow {
  group: string;
  begun: number;
  ended: number;
}

/** What a rank has used. */
export interface IRankSeries {
  rank: number;
  series: Partial<Record<Quantity, (number | null)[]>>;
}

/** A variable on the ranks whose metadata agree. No part of a text is sent: it is no metadata. */
export interface IVariantRow {
  ranks: string;
  type: string;
  shape: number[] | null;
  dtype: string;
  device: string;
  placement: string;
  length: number | null;
  /** The least and the greatest on these ranks. */
  nbytes: [number, number] | null;
  value: string;
  detail: string;
}

/** One frame of a rank's Python stack. */
export interface IStackFrame {
  /** Qualified name; "<cell>" for the code of a cell outside of any function. */
  function: string;
  /** Path on the rank's node; "" for a cell. */
  file: string;
  /** From 1. */
  line: number;
  /** Text of that line, without its indentation. */
  source?: string;
  /** The run whose cell the code is from; 0 if it is not from a cell. */
  run?: number;
  /** Of a cell, a script or the user's own modules, rather than of an installed library. */
  is_user_code?: boolean;
}

/** An option among the user's words after `--`, with a field of its own. */
export interface ILauncherOption {
  /** `--partition`; its value is the next word. */
  flag: string;
  label: string;
  example: string;
  note: string;
  /** A regular expression that the whole value matches; "": anything. */
  pattern: string;
}

/** The lines of some of the ranks of a `TextSegment`. */
export interface IRankText {
  ranks: string;
  text: string;
}

/** One suggested action and its effect, an infinitive such as "start a fresh process". */
export interface IRemedy {
  action: Action;
  effect: string;
  /** Ranks as a user writes them: "2", "0-3,7", "node=1"; "" for all, or none in particular. */
  ranks?: string;
  /** The cluster's name, the path or the variable that it is about, with what is typed beside it. */
  name?: string;
  /** The only run that it acts on; 0: it is not about one. */
  run?: number;
}
