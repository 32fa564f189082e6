/** The REST API of jdist's extension of the Jupyter server (jdist/server). What it sends is in generated/server. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { PartialJSONObject } from '@lumino/coreutils';

import {
  IAddingOptions,
  IClusterSnapshot,
  IConsoleCommands,
  ILaunchOptions,
  ILoginState,
  IRankRow,
  IResourcesSnapshot,
  IStacksSnapshot,
  IVariablesSnapshot,
  StepKind
} from './generated/server';

/** Milliseconds within which the resources arrive: the server waits five seconds for each node. */
const RESOURCES_TIMEOUT = 10_000;

/** A rank. */
export interface IRank extends IRankRow {
  /** When the page received this, in milliseconds of `Date.now()`: its seconds go on from then. */
  receivedAt?: number;
}

/** A cluster. */
export interface ICluster extends IClusterSnapshot {
  ranks?: IRank[];
  /** When the page received this, in milliseconds of `Date.now()`: its seconds go on from then. */
  receivedAt?: number;
}

/** A run, and the cluster that it belongs to: by its name, and by the id that no other cluster has. */
export interface IRunId {
  run: number;
  cluster: string;
  cluster_id?: string;
}

/** How the server begins a login: with which Python there, and whether jdist may be installed. */
export interface ILoginOptions {
  python?: string;
  install?: boolean;
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
  stacks(name: string): Promise<IStacksSnapshot> {
    return this._request(`clusters/${encodeURIComponent(name)}/stacks`);
  }

  /** What the ranks have under which name, by metadata alone. */
  variables(name: string): Promise<IVariablesSnapshot> {
    return this._request(`clusters/${encodeURIComponent(name)}/variables`);
  }

  /** Shows, compares or deletes a variable, for which the ranks read its contents, or run code. */
  variable<T>(name: string, what: 'show' | 'check' | 'delete', variable: string, ranks?: string): Promise<T> {
    const body = ranks ? { name: variable, ranks } : { name: variable };
    return this._request(`clusters/${encodeURIComponent(name)}/variables/${what}`, 'POST', body);
  }

  /** How busy the nodes and ranks were so many seconds back, in at most so many points. Does not keep the server alive. */
  resources(name: string, seconds: number, points: number): Promise<IResourcesSnapshot> {
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

  console(name: string, rank: number): Promise<IConsoleCommands> {
    return this._request(`clusters/${encodeURIComponent(name)}/ranks/${rank}/console`);
  }

  /** The calls of torch.distributed in a run (0: the last one), as `ITraceData`; `id` is that of the cluster. */
  trace<T>(name: string, run: number, id = ''): Promise<T> {
    return this._request(`clusters/${encodeURIComponent(name)}/trace?run=${run}&cluster=${id}`);
  }

  /** Logs in to another host, or with a question's number goes on with that; the next step. */
  login(host: string, step: ILoginOptions | { question: number; answer?: string } = {}): Promise<ILoginState> {
    return this._request(`hosts/${encodeURIComponent(host)}/login`, 'POST', step);
  }

  /** Cancels that. */
  endLogin(host: string): Promise<unknown> {
    return this._request(`hosts/${encodeURIComponent(host)}/login`, 'DELETE');
  }

  /** Hosts, launchers, limits and defaults of a start. */
  launch(): Promise<ILaunchOptions> {
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
