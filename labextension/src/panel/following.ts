/** The panel and the status bar show the cluster of the notebook in front. */

import { INotebookTracker } from '@jupyterlab/notebook';

import { IClusters } from '../tokens';
import { attachedOf } from '../toolbar/attached';

/**
 * Chooses that cluster whenever another notebook comes to the front, or the one in front begins to use a cluster.
 * Until then, any other may be chosen in the panel.
 */
export function followNotebooks(notebooks: INotebookTracker, clusters: IClusters): void {
  const follow = (): void => {
    const name = notebooks.currentWidget ? attachedOf(notebooks.currentWidget).name : '';
    if (name && name !== clusters.current?.name) {
      void clusters.choose(name);
    }
  };
  notebooks.currentChanged.connect(follow);
  notebooks.widgetAdded.connect((_, panel) =>
    attachedOf(panel).changed.connect(() => panel === notebooks.currentWidget && follow())
  );
}
