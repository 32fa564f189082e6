/** The plugin that renders the output of runs in notebooks. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs, IClusters, IPreferences } from '../tokens';
import { IRunJson } from '../generated/server';
import { MIME } from './model';
import { IRunServices, RunOutput } from './output';
import { RankTabs } from './ranktabs';
import { LoadRun, reportedState } from './recovery';
import { showMetrics } from './recoveredmetrics';
import { remedyTaker } from './remedies';

/** Ranks before HTML, which is in the same bundle for front ends without this extension. */
const RANK = 0;

export const runOutput: JupyterFrontEndPlugin<void> = {
  id: 'jdist:run-output',
  description: 'The output of a run by rank.',
  autoStart: true,
  requires: [IRenderMimeRegistry, IClusters, INotebookTracker, IPreferences],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    clusters: IClusters,
    notebooks: INotebookTracker,
    preferences: IPreferences,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jdist');
    const services = { rendermime, trans, preferences };
    const beside = async ({ cluster, cluster_id: id, run }: IRunJson, ranks: string): Promise<string> =>
      (await app.commands.execute(CommandIDs.runBeside, { cluster, id, run, ranks })) as string;
    const takeRemedy = remedyTaker(clusters, notebooks, beside, trans);
    const timeline = async ({ cluster, cluster_id: id, run }: IRunJson): Promise<void> => {
      await app.commands.execute(CommandIDs.openTimeline, { cluster, id, run });
    };
    const step = async ({ cluster, cluster_id: id, paused }: IRunJson, command: string): Promise<void> => {
      const ranks = (paused ?? []).map(place => place.ranks).join(',');
      await app.commands.execute(command, { cluster, id, ranks });
    };
    const load: LoadRun = run => clusters.api.run(run);
    const charts: IRunServices['charts'] = (run, from, metrics) => showMetrics(notebooks, from, run, metrics);
    const watch: IRunServices['watch'] = (run, changed) => {
      let state = '';
      const check = (): void => {
        const shown = run();
        if (!shown || shown.state === 'done') {
          return;
        }
        const now = reportedState(clusters.get(shown.cluster), shown.run);
        if (now !== state) {
          state = now;
          changed();
        }
      };
      clusters.changed.connect(check);
      return () => void clusters.changed.disconnect(check);
    };
    rendermime.addFactory(
      {
        safe: true, // JupyterLab sanitizes the HTML of an untrusted notebook
        mimeTypes: [MIME],
        createRenderer: () => new RunOutput({ ...services, takeRemedy, step, load, charts, watch, timeline })
      },
      RANK
    );
    window.addEventListener('keydown', onKey, true);
  }
};

/**
 * Keeps keys that have a meaning in a run's output from the notebook: Enter on a button must not edit the cell, and
 * arrows in the tabs must not select another one. JupyterLab listens on the document, so this listens on the window.
 */
function onKey(event: KeyboardEvent): void {
  const target = event.target instanceof HTMLElement ? event.target : null;
  const node = target?.closest('.jdist-Run');
  if (!target || !node) {
    return;
  }
  const tabs = tabsOf(node);
  const isPress = (event.key === 'Enter' || event.key === ' ') && !event.shiftKey && !event.ctrlKey;
  if (tabs?.onKey(event) || (isPress && target.closest('button, summary'))) {
    event.stopPropagation();
  }
}

function tabsOf(node: Element): RankTabs | undefined {
  const found = node.querySelector(':scope > .jdist-RunTabs');
  return found ? RankTabs.of(found) : undefined;
}
