/** The plugin that shows timelines: of `%dist trace` in a notebook, and of a run in a tab of its own. */

import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, IThemeManager, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry, MimeModel } from '@jupyterlab/rendermime';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { Panel } from '@lumino/widgets';

import { IRunId, RequestError } from '../api';
import { ranksIcon } from '../shell/icons';
import { paletteCategory } from '../shell/names';
import { Tabs } from '../shell/tabs';
import { CommandIDs, IClusters } from '../tokens';
import { ITraceData, Trace, TRACE_MIME, TRACE_VERSION } from './trace';
import { TimelineView } from './view';

const HEIGHT = 320;

type Tab = MainAreaWidget<TimelineView> & { jdist?: IRunId };

export const timeline: JupyterFrontEndPlugin<void> = {
  id: 'jdist:timeline',
  description: "A run's calls of torch.distributed by rank, and which rank waited for which.",
  autoStart: true,
  requires: [IRenderMimeRegistry, IClusters, INotebookTracker],
  optional: [ITranslator, ILayoutRestorer, IThemeManager, ICommandPalette, ILabShell],
  activate: (
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    clusters: IClusters,
    notebooks: INotebookTracker,
    translator: ITranslator | null,
    restorer: ILayoutRestorer | null,
    themes: IThemeManager | null,
    palette: ICommandPalette | null,
    lab: ILabShell | null
  ) => {
    const tabs = new Tabs(app.shell, lab);
    const trans = (translator ?? nullTranslator).load('jdist');
    const tracker = new WidgetTracker<Tab>({ namespace: 'jdist-timeline' });
    themes?.themeChanged.connect(() => {
      tracker.forEach(tab => tab.content.update());
      document.querySelectorAll('.jdist-TimelineScroll canvas').forEach(node => TimelineView.of(node)?.update());
    });
    const load = async (run: IRunId): Promise<Trace> => {
      const kernel = notebooks.currentWidget?.sessionContext.session?.kernel;
      return Trace.from(await loadTrace(clusters, kernel, run));
    };
    app.commands.addCommand(CommandIDs.openTimeline, {
      label: trans.__('Timeline of a run'),
      caption: trans.__('The torch.distributed calls of a run by rank, and which rank waited for which'),
      icon: ranksIcon,
      isEnabled: args => !!args.cluster || !!clusters.current,
      execute: async args => {
        const cluster = typeof args.cluster === 'string' ? args.cluster : (clusters.current?.name ?? '');
        const id = typeof args.id === 'string' && args.id ? args.id : clusters.get(cluster)?.cluster;
        const trace = await load({ cluster, cluster_id: id, run: Number(args.run ?? 0) });
        const run: IRunId = { cluster, cluster_id: id, run: trace.data.run };
        const tab = tabOf(tracker, run) ?? createTab(trans);
        tab.jdist = run;
        tab.title.label = trans.__('Timeline of run %1', trace.data.run);
        tab.title.caption = trans.__('Run %1 of cluster %2', trace.data.run, cluster);
        tab.content.trace = trace;
        if (!tracker.has(tab)) {
          tab.content.addButton('↻', trans.__('Refresh'), async () => {
            tab.content.trace = await load(run);
          });
          await tracker.add(tab);
          tabs.add(tab, { mode: 'split-bottom' });
        }
        tabs.activate(tab);
      }
    });
    palette?.addItem({ command: CommandIDs.openTimeline, category: paletteCategory(trans) });
    void restorer?.restore(tracker, {
      command: CommandIDs.openTimeline,
      args: tab => ({
        cluster: tab.jdist?.cluster ?? '',
        id: tab.jdist?.cluster_id ?? '',
        run: tab.jdist?.run ?? 0
      }),
      name: tab => `${tab.jdist?.cluster}:${tab.jdist?.cluster_id}:${tab.jdist?.run}`,
      when: clusters.ready
    });
    rendermime.addFactory(
      { safe: true, mimeTypes: [TRACE_MIME], createRenderer: () => new TraceOutput(rendermime, trans) },
      0
    );
    window.addEventListener('keydown', onKey, true);
  }
};

/** The output of `%dist trace` in a notebook. */
class TraceOutput extends Panel implements IRenderMime.IRenderer {
  constructor(
    private _rendermime: IRenderMimeRegistry,
    private _trans: TranslationBundle
  ) {
    super();
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const data = model.data[TRACE_MIME] as unknown as ITraceData;
    if (data?.version !== TRACE_VERSION) {
      const renderer = this._rendermime.createRenderer('text/html');
      this.addWidget(renderer);
      return renderer.renderModel(new MimeModel({ data: model.data, trusted: model.trusted }));
    }
    const trace = await Trace.from(data);
    if (!this._view) {
      this._view = new TimelineView(this._trans, HEIGHT);
      this.addWidget(this._view);
    }
    this._view.trace = trace;
  }

  private _view?: TimelineView;
}

/**
 * Requests the trace from the server, which answers even while the kernel is busy with a run that hangs. If the server
 * does not know the cluster, since the kernel runs on another machine, the trace is requested from the kernel.
 */
async function loadTrace(
  clusters: IClusters,
  kernel: Kernel.IKernelConnection | null | undefined,
  { cluster, cluster_id: id, run }: IRunId
): Promise<ITraceData> {
  try {
    return await clusters.api.trace(cluster, run, id);
  } catch (error) {
    const isUnknown = error instanceof RequestError && (error.status === 404 || error.status === 0);
    const found = isUnknown && kernel?.status === 'idle' ? await loadFromKernel(kernel, run) : undefined;
    if (!found || (id && found.cluster_id !== id)) {
      throw error;
    }
    return found;
  }
}

async function loadFromKernel(kernel: Kernel.IKernelConnection, run: number): Promise<ITraceData | undefined> {
  const code = `get_ipython().run_line_magic('dist', 'trace --run ${run}')`;
  const future = kernel.requestExecute({ code, store_history: false, stop_on_error: false });
  let found: ITraceData | undefined;
  future.onIOPub = message => {
    if (KernelMessage.isDisplayDataMsg(message)) {
      found = (message.content.data[TRACE_MIME] as unknown as ITraceData) ?? found;
    }
  };
  await future.done;
  return found;
}

function tabOf(tracker: WidgetTracker<Tab>, { cluster, cluster_id: id, run }: IRunId): Tab | undefined {
  return tracker.find(({ jdist: own }) => own?.cluster === cluster && own.cluster_id === id && own.run === run);
}

function createTab(trans: TranslationBundle): Tab {
  const tab: Tab = new MainAreaWidget({ content: new TimelineView(trans) });
  tab.id = `jdist-timeline-${count++}`;
  tab.title.icon = ranksIcon;
  tab.title.closable = true;
  return tab;
}

let count = 0;

/** Keeps keys that have a meaning on the canvas from the notebook. */
function onKey(event: KeyboardEvent): void {
  if (event.target instanceof HTMLCanvasElement && TimelineView.of(event.target)?.onKey(event)) {
    event.stopPropagation();
  }
}
