/** What is kept over a reload: which cluster is looked at, and how the table of its ranks is shown. */

import { IStateDB } from '@jupyterlab/statedb';
import { Debouncer } from '@lumino/polling';

import { IClusters } from '../tokens';
import { Choice, IView } from './choice';

const KEY = 'jdist:panel';
/** Milliseconds after which a change is written down. */
const SOON = 500;

interface IKept {
  cluster?: string;
  view?: IView;
}

/** Takes it up, and keeps it from then on. */
export async function keep(state: IStateDB | null, clusters: IClusters, choice: Choice): Promise<void> {
  if (!state) {
    return;
  }
  const kept = (await state.fetch(KEY)) as IKept | undefined;
  if (kept?.view) {
    choice.show(kept.view);
  }
  if (kept?.cluster) {
    await clusters.choose(kept.cluster);
  }
  let written = JSON.stringify(kept);
  const write = new Debouncer(async () => {
    const now = { cluster: clusters.current?.name ?? '', view: { ...choice.view } };
    if (JSON.stringify(now) !== written) {
      written = JSON.stringify(now);
      await state.save(KEY, now);
    }
  }, SOON);
  clusters.changed.connect(() => void write.invoke());
  choice.changed.connect(() => void write.invoke());
}
