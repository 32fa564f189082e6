/** The REST API of jdist's extension of the Jupyter server (jdist/server), and the types of what it sends. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { PartialJSONObject } from '@lumino/coreutils';

import { IAdding, IAddingOptions, ILaunch } from './launch';
import { IRemedy } from './remedy';
import { IResources } from './resources';
import { IVariables } from './variables';

/** Milliseconds within which the resources arrive: the server waits five seconds for each node. */
const RESOURCES_TIMEOUT = 10_000;

/** What a rank's main thread is doing. */
export interface IDoing {
  kind: string;
  op: string;
  /** The collective's sequence number in its group; 0 if it is in none. */
  number: number;
  /** The name of that group; empty if it is not known. */
  group: string;
  line: number;
  source: string;
  seconds: number;
  cpu: number | null;
  waits_for: string;
  process: string;
}

/** Where a rank is paused: in `run`, at a line of the cell of run `of_run`, or of `file` if that is 0. */
export interface IPause {
  run: number;
  reason: string;
  /** All of this in words. */
  text: string;
  function: string;
  line: number;
  file: string;
  of_run: number;
}

/** One frame of a stack; `run` is the run whose cell its code is from, absent if it is from a file. */
export interface IFrame {
  function: string;
  file?: string;
  line: number;
  source?: string;
  run?: number;
}

/** A frame that ranks have in common, and the frames that it has called on them; cells of `chosen` run in it. */
export interface IBranch {
  frame: IFrame;
  ranks: number[];
  chosen: number[];
  children: IBranch[];
}

/** The stacks of paused ranks as one tree, and what the other ranks do. */
export interface IStacks {
  stacks: IBranch[];
  others: { ranks: string; text: string }[];
}

/** How paused ranks resume. */
export type StepKind = 'continue' | 'step' | 'next' | 'return' | 'until' | 'next_call';

/** A rank. */
export interface IRank {
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
  /** Why its last process ended; empty if it still has its first. */
  death: string;
  /** Seconds since then; counted from `receivedAt`. */
  death_age: number;
  /** Where it is paused; absent if it is not. */
  paused?: IPause;
  /** It was asked to pause, and has not yet. */
  is_pausing?: boolean;
  device: string;
  /** Bytes of memory that its process uses; null as long as the rank has not reported it. */
  rss: number | null;
  /** The number and name of its GPU; this and the following fields are absent where there is none. */
  gpu_name?: string;
  /** Bytes of that GPU's memory that all processes use, and all that it has; 0 where the driver does not report it. */
  gpu_used?: number;
  gpu_total?: number;
  /** Bytes that this rank uses; null where the driver does not report it, as often in a container. */
  gpu_own?: number | null;
  /** Share of the recent time in which the GPU was busy, from 0 to 1; null where it is not known. */
  gpu_busy?: number | null;
  doing: IDoing | null;
  progress: { group: string; begun: number; ended: number }[];
  /** When the page received this, in milliseconds of `Date.now()`: `doing.seconds` goes on from then. */
  receivedAt?: number;
}

export interface INode {
  node: number;
  hostname: string;
  is_here: boolean;
  ranks: number[];
}

export interface IGroup {
  name: string;
  ranks: number[];
}

export interface IMesh {
  names: string[];
  sizes: number[];
}

export interface IRun {
  number: number;
  state: string;
  ranks: string;
  count: number;
  done: number;
  seconds: number;
}

/** Why a run does not move, and the suggested actions. */
export interface IVerdict {
  run: number;
  kind: string;
  is_certain: boolean;
  headline: string;
  details: string[];
  responsible: number[];
  waiting: number[];
  remedies: IRemedy[];
}

/** A cluster. Of one that cannot be attached to only the name, the state and the reason are known. */
export interface ICluster {
  name: string;
  /** Its id, which no other cluster has; empty if it is not known. */
  cluster?: string;
  /**
   * gathering, forming, ready, failed, stopping: as its controller reports; starting: a start from a browser of which
   * no more is known; silent: it does not answer; foreign: it has another version; orphaned: its controller is gone.
   */
  state: string;
  reason: string;
  /** Who is missing, while a start from a browser is in progress; null once it has failed. */
  starting?: string | null;
  /** A node is waited for which the user has to start; `Api.instructions` has the line to paste. */
  has_instructions?: boolean;
  /** Nodes that are added from a browser; for a minute also how that has ended. */
  adding?: IAdding;
  version?: string;
  /** Seconds since it was as described, if it does not answer any more; counted from `receivedAt`. */
  age?: number;
  backend?: string;
  generation?: number;
  nnodes?: number;
  world_size?: number;
  /** How many ranks are up. */
  ready?: number;
  nodes?: INode[];
  groups?: IGroup[];
  mesh?: IMesh | null;
  ranks?: IRank[];
  runs?: IRun[];
  cell_groups?: (IGroup & { backend: string; is_gone: boolean })[];
  verdicts?: IVerdict[];
  silences?: string[];
  left_out?: string[];
  /** When the page received this, in milliseconds of `Date.now()`. */
  receivedAt?: number;
}

/** A run, and the cluster that it belongs to: by its name, and by the id that no other cluster has. */
export interface IRunId {
  run: number;
  cluster: string;
  cluster_id?: string;
}

/** How a terminal is attached to a rank. */
export interface IConsole {
  hostname: string;
  /** The command for a terminal on that host. */
  command: string;
  /** The command for a terminal of the Jupyter server; empty if it cannot reach the rank, for `reason`. */
  command_here: string;
  reason: string;
}

/** A request that failed; its message is the server's. The status is 0 if the server did not answer. */
export class RequestError extends Error {
  constructor(
    readonly status: number,
    message: string
  ) {
    super(message);
    this.name = 'RequestError';
  }
}

/** Requests to the server's extension, below `{base_url}jdist/`. All of them reject with a RequestError. */
export class Api {
  constructor(private _settings: ServerConnection.ISettings) {}

  async list(): Promise<ICluster[]> {
    const { clusters } = await this._request<{ clusters?: ICluster[] }>('clusters');
    if (!Array.isArray(clusters)) {
      throw new RequestError(200, 'the server extension is of a version that this page does not understand');
    }
    return clusters;
  }

  cluster(name: string): Promise<ICluster> {
    return this._request(`clusters/${encodeURIComponent(name)}`);
  }

  start(options: Record<string, unknown>): Promise<{ name: string; state: string }> {
    return this._request('clusters', 'POST', options);
  }

  stop(name: string): Promise<unknown> {
    return this._request(`clusters/${encodeURIComponent(name)}`, 'DELETE');
  }

  /** What the user has to run on nodes, so that they join. The line holds a key. */
  instructions(name: string): Promise<{ about: string; line: string }> {
    return this._request(`clusters/${encodeURIComponent(name)}/instructions`, 'POST', {});
  }

  addingOptions(name: string): Promise<IAddingOptions> {
    return this._request(`clusters/${encodeURIComponent(name)}/nodes`);
  }

  /** Begins to add nodes; the number by which `ICluster.adding` knows that. */
  addNodes(name: string, options: Record<string, unknown>): Promise<{ number: number }> {
    return this._request(`clusters/${encodeURIComponent(name)}/nodes`, 'POST', options);
  }

  /** Cancels that; nodes that have joined stay. */
  endAdding(name: string): Promise<unknown> {
    return this._request(`clusters/${encodeURIComponent(name)}/nodes`, 'DELETE', {});
  }

  /** Copies a file or folder of the server to every node; there is no text yet if that takes long. */
  sync(name: string, path: string): Promise<{ text?: string }> {
    return this._request(`clusters/${encodeURIComponent(name)}/sync`, 'POST', { path });
  }

  /** Examines the nodes and the network between them: the findings first, then what was found out. */
  doctor(name: string): Promise<{ text: string; is_well: boolean }> {
    return this._request(`clusters/${encodeURIComponent(name)}/doctor`, 'POST', {});
  }

  /** The lines of a notebook's cell that attach to the cluster. */
  async attachCode(name: string): Promise<string> {
    return (await this._request<{ code: string }>(`clusters/${encodeURIComponent(name)}/attach`)).code;
  }

  /** `ranks` as a user writes them; all of them by default. With `run`, that run only. */
  interrupt(name: string, ranks?: string, run?: IRunId): Promise<unknown> {
    const body = { ...(ranks ? { ranks } : {}), ...(run ? { run: run.run, cluster: run.cluster_id } : {}) };
    return this._request(`clusters/${encodeURIComponent(name)}/interrupt`, 'POST', body);
  }

  /** What a cell shows of a run, over or not, and of its metrics if it has logged any, as MIME bundles. */
  run(run: IRunId): Promise<{ data: PartialJSONObject; metrics?: PartialJSONObject }> {
    return this._request(`clusters/${encodeURIComponent(run.cluster)}/runs/${run.run}?cluster=${run.cluster_id ?? ''}`);
  }

  /** Runs code on some of the ranks of a run's cluster, beside it; what a cell shows of that, as a MIME bundle. */
  async runBeside(run: IRunId, code: string, ranks: string): Promise<PartialJSONObject> {
    const body = { code, ranks, cluster: run.cluster_id };
    const path = `clusters/${encodeURIComponent(run.cluster)}/cells`;
    return (await this._request<{ data: PartialJSONObject }>(path, 'POST', body)).data;
  }

  /** `ranks` as a user writes them; all of them by default. */
  restart(name: string, ranks?: string): Promise<unknown> {
    return this._request(`clusters/${encodeURIComponent(name)}/restart`, 'POST', ranks ? { ranks } : {});
  }

  /** `ranks` as a user writes them; all of them by default. */
  pause(name: string, ranks?: string): Promise<unknown> {
    return this._request(`clusters/${encodeURIComponent(name)}/pause`, 'POST', ranks ? { ranks } : {});
  }

  /** `ranks` as a user writes them; all of them by default. */
  resume(name: string, how: StepKind, ranks?: string, id?: string): Promise<unknown> {
    const body = { how, ...(ranks ? { ranks } : {}), ...(id ? { cluster: id } : {}) };
    return this._request(`clusters/${encodeURIComponent(name)}/resume`, 'POST', body);
  }

  /** The stacks of the paused ranks. */
  stacks(name: string): Promise<IStacks> {
    return this._request(`clusters/${encodeURIComponent(name)}/stacks`);
  }

  /** What the ranks have under which name, by metadata alone. */
  variables(name: string): Promise<IVariables> {
    return this._request(`clusters/${encodeURIComponent(name)}/variables`);
  }

  /** Shows, compares or deletes a variable, for which the ranks read its contents, or run code. */
  variable<T>(name: string, what: 'show' | 'check' | 'delete', variable: string, ranks?: string): Promise<T> {
    const body = ranks ? { name: variable, ranks } : { name: variable };
    return this._request(`clusters/${encodeURIComponent(name)}/variables/${what}`, 'POST', body);
  }

  /** How busy the nodes and ranks were so many seconds back, in at most so many points. Does not keep the server alive. */
  resources(name: string, seconds: number, points: number): Promise<IResources> {
    const query = `seconds=${seconds}&points=${points}&no_track_activity=1`;
    const path = `clusters/${encodeURIComponent(name)}/resources?${query}`;
    return this._request(path, 'GET', undefined, AbortSignal.timeout(RESOURCES_TIMEOUT));
  }

  /** Lets cells of these ranks run in a frame of the tree, counted from 0 for the outermost. */
  chooseFrame(name: string, index: number, ranks: string): Promise<unknown> {
    return this._request(`clusters/${encodeURIComponent(name)}/frame`, 'POST', { ranks, index });
  }

  /** The text of a source file on the rank's node that is on the rank's stack. */
  source(name: string, rank: number, file: string): Promise<{ text: string }> {
    const query = `file=${encodeURIComponent(file)}`;
    return this._request(`clusters/${encodeURIComponent(name)}/ranks/${rank}/source?${query}`);
  }

  /** Starts a new controller for a cluster whose controller has died. */
  revive(name: string): Promise<unknown> {
    return this._request(`clusters/${encodeURIComponent(name)}/revive`, 'POST', {});
  }

  logs(name: string, rank: number, lines = 200): Promise<{ text: string; path: string }> {
    return this._request(`clusters/${encodeURIComponent(name)}/ranks/${rank}/logs?lines=${lines}`);
  }

  stack(name: string, rank: number): Promise<{ text: string }> {
    return this._request(`clusters/${encodeURIComponent(name)}/ranks/${rank}/stack`);
  }

  console(name: string, rank: number): Promise<IConsole> {
    return this._request(`clusters/${encodeURIComponent(name)}/ranks/${rank}/console`);
  }

  /** The calls of torch.distributed in a run (0: the last one), as `ITraceData`; `id` is that of the cluster. */
  trace<T>(name: string, run: number, id = ''): Promise<T> {
    return this._request(`clusters/${encodeURIComponent(name)}/trace?run=${run}&cluster=${id}`);
  }

  /** Launchers, limits and defaults of a start. */
  launch(): Promise<ILaunch> {
    return this._request('launch');
  }

  private async _request<T>(path: string, method = 'GET', body?: unknown, signal?: AbortSignal): Promise<T> {
    const url = URLExt.join(this._settings.baseUrl, 'jdist', path);
    const init: RequestInit = { method, signal };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
    }
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(url, init, this._settings);
    } catch (error) {
      throw new RequestError(0, `the Jupyter server does not answer: ${String(error)}`);
    }
    const text = await response.text();
    let data: { message?: string } | null = null;
    try {
      data = JSON.parse(text || '{}') as { message?: string };
    } catch {
      // The page of a proxy, or of a server without this route: reported below.
    }
    if (!response.ok) {
      throw new RequestError(response.status, data?.message || `${response.status} ${response.statusText}`);
    }
    if (data === null) {
      throw new RequestError(response.status, `what answers at ${url} is not jdist's server extension`);
    }
    return data as T;
  }
}
