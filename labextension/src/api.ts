/** What the jdist extension of the Jupyter server answers, and how it is asked: jdist/server/routes.py and pictures.py. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

/** What a rank's main thread does. */
export interface IDoing {
  kind: string;
  op: string;
  /** The collective's sequence number in its group; 0 if it is in none. */
  number: number;
  /** What a person calls that group; empty if it is not known. */
  group: string;
  line: number;
  source: string;
  seconds: number;
  cpu: number | null;
  waits_for: string;
  process: string;
}

/** A rank's row. */
export interface IRank {
  rank: number;
  node: number;
  local_rank: number;
  hostname: string;
  pid: number;
  state: string;
  run: number;
  last_line: string;
  is_fresh: boolean;
  death: string;
  death_age: number;
  device: string;
  /** Bytes of memory; null while the rank has not said. */
  rss: number | null;
  /** Its GPU, by the driver's number and name; this and what follows is absent where there is none. */
  gpu_name?: string;
  /** Bytes of that one's memory that are taken, by anybody, and all there are; 0 where the driver does not tell. */
  gpu_used?: number;
  gpu_total?: number;
  /** Bytes that are the rank's own; null where the driver does not tell, as often in a container. */
  gpu_own?: number | null;
  /** Share of the time in which the GPU worked lately, for anybody, 0 to 1; null where it is not known. */
  gpu_busy?: number | null;
  doing: IDoing | null;
  progress: { group: string; begun: number; ended: number }[];
  /** When the model heard this, in milliseconds of `Date.now()`: what passes since then is told by nobody. */
  heard?: number;
}

export interface INode {
  node: number;
  hostname: string;
  is_here: boolean;
  is_cut_off: boolean;
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

/** Why a run does not move, and the ways out. */
export interface IVerdict {
  run: number;
  kind: string;
  is_certain: boolean;
  headline: string;
  details: string[];
  responsible: number[];
  waiting: number[];
  ways: { command: string; effect: string }[];
}

/** A cluster. Of one that cannot be attached to only the name, the state and the reason are known. */
export interface ICluster {
  name: string;
  /**
   * gathering, forming, ready, failed, stopping: as it says itself; starting: a start from a browser of which no more
   * is known; silent: it does not answer; foreign: another version's; orphaned: its controller is gone.
   */
  state: string;
  reason: string;
  /** Who is missing, while a start from a browser is under way; null once it has failed. */
  starting?: string | null;
  version?: string;
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
  /** When the model heard this, in milliseconds of `Date.now()`. */
  heard?: number;
}

/** What a start may be asked for. */
export interface ILaunch {
  /** The default first. */
  launchers: string[];
  /** Of all clusters together; 0: any number. */
  max_ranks: number;
  ranks_here: number;
  defaults: Record<string, string | number>;
}

/** How a terminal is attached to a rank. */
export interface IConsole {
  hostname: string;
  /** For a terminal on that host. */
  command: string;
  /** For a terminal of the Jupyter server; empty if that cannot reach the rank, and `reason` says why. */
  command_here: string;
  reason: string;
}

/** Says what went wrong in the server's own words. */
export class RequestError extends Error {
  constructor(
    readonly status: number,
    message: string
  ) {
    super(message);
    this.name = 'RequestError';
  }
}

/** Asks the server's extension. Paths are below `{base_url}jdist/`. Rejects with a RequestError. */
export class Api {
  constructor(private _settings: ServerConnection.ISettings) {}

  async list(): Promise<ICluster[]> {
    const { clusters } = await this._ask<{ clusters?: ICluster[] }>('clusters');
    if (!Array.isArray(clusters)) {
      throw new RequestError(200, 'the server extension is of a version that this page does not understand');
    }
    return clusters;
  }

  cluster(name: string): Promise<ICluster> {
    return this._ask(`clusters/${encodeURIComponent(name)}`);
  }

  start(options: Record<string, unknown>): Promise<{ name: string; state: string }> {
    return this._ask('clusters', 'POST', options);
  }

  stop(name: string): Promise<unknown> {
    return this._ask(`clusters/${encodeURIComponent(name)}`, 'DELETE');
  }

  /** Lines for a notebook's cell that attach to it. */
  async attachCode(name: string): Promise<string> {
    return (await this._ask<{ code: string }>(`clusters/${encodeURIComponent(name)}/attach`)).code;
  }

  /** `ranks` as a user writes them; all if left out. */
  interrupt(name: string, ranks?: string): Promise<unknown> {
    return this._ask(`clusters/${encodeURIComponent(name)}/interrupt`, 'POST', ranks ? { ranks } : {});
  }

  /** `ranks` as a user writes them; all if left out. */
  restart(name: string, ranks?: string): Promise<unknown> {
    return this._ask(`clusters/${encodeURIComponent(name)}/restart`, 'POST', ranks ? { ranks } : {});
  }

  /** Starts the controller of a cluster again whose controller has died. */
  revive(name: string): Promise<unknown> {
    return this._ask(`clusters/${encodeURIComponent(name)}/revive`, 'POST', {});
  }

  logs(name: string, rank: number, lines = 200): Promise<{ text: string; path: string }> {
    return this._ask(`clusters/${encodeURIComponent(name)}/ranks/${rank}/logs?lines=${lines}`);
  }

  stack(name: string, rank: number): Promise<{ text: string }> {
    return this._ask(`clusters/${encodeURIComponent(name)}/ranks/${rank}/stack`);
  }

  console(name: string, rank: number): Promise<IConsole> {
    return this._ask(`clusters/${encodeURIComponent(name)}/ranks/${rank}/console`);
  }

  /** The calls of torch.distributed in a run, 0 for the last one; `ITraceData` of timeline/trace.ts. */
  trace<T>(name: string, run: number): Promise<T> {
    return this._ask(`clusters/${encodeURIComponent(name)}/trace?run=${run}`);
  }

  /** Launchers, limits and defaults of a start. */
  launch(): Promise<ILaunch> {
    return this._ask('launch');
  }

  private async _ask<T>(path: string, method = 'GET', body?: unknown): Promise<T> {
    const url = URLExt.join(this._settings.baseUrl, 'jdist', path);
    const init: RequestInit = { method };
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
      // a proxy's page, or a server's that has no such route: said below
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
