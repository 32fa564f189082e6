/** State of the panel that is kept over a reload: which cluster it shows, and the views of its table and charts. */

import { IStateDB } from '@jupyterlab/statedb';
import { Debouncer } from '@lumino/polling';

import { IClusters } from '../tokens';
import { IResourceView, ResourceView } from './resources/view';
import { ITableView, Selection } from './selection';

const KEY = 'jdist:panel';
/** Milliseconds without another change after which the state is saved. */
const SAVE_AFTER = 500;

interface IPersisted {
  cluster?: string;
  view?: Partial<ITableView>;
  resources?: Partial<IResourceView>;
}

/** Restores the state, and saves every change from then on. */
export async function persistState(
  state: IStateDB | null,
  clusters: IClusters,
  selection: Selection,
  resources: ResourceView
): Promise<void> {
  if (!state) {
    return;
  }
  const persisted = (await state.fetch(KEY)) as IPersisted | undefined;
  if (persisted?.view) {
    selection.changeView(persisted.view);
  }
  if (persisted?.resources) {
    resources.change(persisted.resources);
  }
  if (persisted?.cluster) {
    await clusters.choose(persisted.cluster);
  }
  let saved = JSON.stringify(persisted);
  const save = new Debouncer(async () => {
    const cluster = clusters.current?.name ?? '';
    const now = { cluster, view: { ...selection.view }, resources: { ...resources.values } };
    if (JSON.stringify(now) !== saved) {
      saved = JSON.stringify(now);
      await state.save(KEY, now);
    }
  }, SAVE_AFTER);
  clusters.changed.connect(() => void save.invoke());
  selection.changed.connect(() => void save.invoke());
  resources.changed.connect(() => void save.invoke());
}
