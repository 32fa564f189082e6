/** A viewer in the main area for a source file on a rank's node, with the lines at which ranks are paused. */

import { EditorView } from '@codemirror/view';
import { MainAreaWidget } from '@jupyterlab/apputils';
import { CodeEditor, CodeEditorWrapper, IEditorServices } from '@jupyterlab/codeeditor';
import { TranslationBundle } from '@jupyterlab/translation';
import { BoxLayout, Widget } from '@lumino/widgets';

import { markPaused } from '../cells/pausedlines';
import { linesOf } from '../paused';
import { IClusters } from '../tokens';
import { ranksIcon } from './icons';

export interface ISource {
  cluster: string;
  rank: number;
  file: string;
}

/** The id of the widget, so that a file is opened only once. */
export function sourceId({ cluster, file }: ISource): string {
  return `jdist-source-${cluster}-${file}`;
}

/** A tab that shows the file. */
export function createSourceViewer(
  source: ISource,
  clusters: IClusters,
  services: IEditorServices,
  trans: TranslationBundle
): MainAreaWidget<SourceViewer> {
  const content = new SourceViewer(source, clusters, services, trans);
  const widget = new MainAreaWidget({ content });
  widget.id = sourceId(source);
  widget.title.label = source.file.split('/').pop() ?? source.file;
  widget.title.caption = trans.__('%1 on the node of rank %2 of %3', source.file, source.rank, source.cluster);
  widget.title.icon = ranksIcon;
  widget.title.closable = true;
  return widget;
}

export class SourceViewer extends Widget {
  constructor(
    private readonly _source: ISource,
    private readonly _clusters: IClusters,
    services: IEditorServices,
    trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-source');
    this._about.className = 'jdist-about';
    this._about.setAttribute('role', 'status');
    this._about.textContent = trans.__('Loading…');
    const model = new CodeEditor.Model({ mimeType: 'text/x-python' });
    this._editor = new CodeEditorWrapper({
      model,
      factory: services.factoryService.newDocumentEditor,
      editorOptions: {
        config: { readOnly: true, lineNumbers: true },
        extensions: [EditorView.contentAttributes.of({ 'aria-label': trans.__('Source of %1', _source.file) })]
      }
    });
    const layout = (this.layout = new BoxLayout({ direction: 'top-to-bottom', spacing: 0 }));
    const about = new Widget({ node: this._about });
    layout.addWidget(about);
    layout.addWidget(this._editor);
    BoxLayout.setStretch(about, 0);
    BoxLayout.setStretch(this._editor, 1);
    _clusters.changed.connect(this._mark, this);
    void this._load(trans);
  }

  /** Scrolls to a line, counted from 1, now or once the file has been loaded. */
  revealLine(line: number): void {
    this._line = line;
    if (this._isLoaded) {
      const position = { line: Math.max(0, line - 1), column: 0 };
      this._editor.editor.setCursorPosition(position);
      this._editor.editor.revealPosition(position);
    }
  }

  private async _load(trans: TranslationBundle): Promise<void> {
    const { cluster, rank, file } = this._source;
    try {
      const { text } = await this._clusters.api.source(cluster, rank, file);
      if (this.isDisposed) {
        return;
      }
      this._editor.model.sharedModel.setSource(text);
      this._about.textContent = trans.__('%1 on the node of rank %2 of %3, read-only', file, rank, cluster);
      this._isLoaded = true;
      this._mark();
      this.revealLine(this._line);
    } catch (error) {
      this._about.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  private _mark(): void {
    if (this._isLoaded) {
      markPaused(this._editor.editor, linesOf(this._clusters.get(this._source.cluster), this._source.file));
    }
  }

  private readonly _about = document.createElement('p');
  private readonly _editor: CodeEditorWrapper;
  private _isLoaded = false;
  private _line = 1;
}
