/** The plugin that draws traces: in a notebook what `%dist trace` shows, and a run's in a tab of its own. */

import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, IThemeManager, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry, MimeModel } from '@jupyterlab/rendermime';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { Panel } from '@lumino/widgets';

import { RequestError } from '../api';
import { ranksIcon } from '../icons';
import { Tabs } from '../tabs';
import { CommandIDs, IClusters } from '../tokens';
import { ITraceData, Trace, TRACE_MIME, TRACE_VERSION } from './trace';
import { TimelineView } from './view';

const HEIGHT = 320;

type Tab = MainAreaWidget<TimelineView> & { jdist?: { cluster: string; run: number } };

export const timeline: JupyterFrontEndPlugin<void> = {
  id: 'jdist:timeline',
  description: "A run's calls of torch.distributed by rank, and who waited for whom.",
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
    const ask = async (cluster: string, run: number): Promise<Trace> => {
      const kernel = notebooks.currentWidget?.sessionContext.session?.kernel;
      return Trace.from(await asked(clusters, kernel, cluster, run));
    };
    app.commands.addCommand(CommandIDs.openTimeline, {
      label: trans.__('Timeline of a Run'),
      caption: trans.__('Who waited for whom: the calls of torch.distributed in a run, by rank'),
      icon: ranksIcon,
      isEnabled: args => !!args.cluster || !!clusters.current,
      execute: async args => {
        const cluster = typeof args.cluster === 'string' ? args.cluster : (clusters.current?.name ?? '');
        const trace = await ask(cluster, Number(args.run ?? 0));
        const tab = tabOf(tracker, trace) ?? opened(trans);
        tab.jdist = { cluster, run: trace.data.run };
        tab.title.label = trans.__('Timeline of run %1', trace.data.run);
        tab.title.caption = trans.__('Run %1 of cluster %2', trace.data.run, cluster);
        tab.content.trace = trace;
        if (!tracker.has(tab)) {
          tab.content.addButton('↻', trans.__('Ask the ranks again'), async () => {
            tab.content.trace = await ask(cluster, trace.data.run);
          });
          await tracker.add(tab);
          tabs.add(tab, { mode: 'split-bottom' });
        }
        tabs.activate(tab);
      }
    });
    palette?.addItem({ command: CommandIDs.openTimeline, category: trans.__('Ranks') });
    void restorer?.restore(tracker, {
      command: CommandIDs.openTimeline,
      args: tab => ({ cluster: tab.jdist?.cluster ?? '', run: tab.jdist?.run ?? 0 }),
      name: tab => `${tab.jdist?.cluster}:${tab.jdist?.run}`,
      when: clusters.ready
    });
    rendermime.addFactory(
      { safe: true, mimeTypes: [TRACE_MIME], createRenderer: () => new TraceOutput(rendermime, trans) },
      0
    );
    window.addEventListener('keydown', onKey, true);
  }
};

/** What `%dist trace` shows, in a notebook. */
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
 * The server is asked, which the kernel's being busy does not keep from answering: also of a run that hangs. If it does
 * not know the cluster (the kernel runs elsewhere), the kernel is.
 */
async function asked(
  clusters: IClusters,
  kernel: Kernel.IKernelConnection | null | undefined,
  cluster: string,
  run: number
): Promise<ITraceData> {
  try {
    return await clusters.api.trace(cluster, run);
  } catch (error) {
    const isUnknown = error instanceof RequestError && (error.status === 404 || error.status === 0);
    const found = isUnknown && kernel?.status === 'idle' ? await askedOfKernel(kernel, run) : undefined;
    if (!found) {
      throw error;
    }
    return found;
  }
}

async function askedOfKernel(kernel: Kernel.IKernelConnection, run: number): Promise<ITraceData | undefined> {
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

function tabOf(tracker: WidgetTracker<Tab>, trace: Trace): Tab | undefined {
  return tracker.find(tab => tab.jdist?.cluster === trace.data.cluster && tab.jdist.run === trace.data.run);
}

function opened(trans: TranslationBundle): Tab {
  const tab: Tab = new MainAreaWidget({ content: new TimelineView(trans) });
  tab.id = `jdist-timeline-${count++}`;
  tab.title.icon = ranksIcon;
  tab.title.closable = true;
  return tab;
}

let count = 0;

/** The picture's keys are not the notebook's. */
function onKey(event: KeyboardEvent): void {
  if (event.target instanceof HTMLCanvasElement && TimelineView.of(event.target)?.onKey(event)) {
    event.stopPropagation();
  }
}
