/** The lines of an editor at which ranks are paused: each is marked, with the ranks at its end. */

import { Extension, StateEffect, StateField } from '@codemirror/state';
import { Decoration, DecorationSet, EditorView } from '@codemirror/view';
import { CodeEditor } from '@jupyterlab/codeeditor';
import { CodeMirrorEditor } from '@jupyterlab/codemirror';

import { formatRanks } from '../format';
import { PausedLines } from '../paused';

const change = StateEffect.define<PausedLines>();

const marks = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (shown, transaction) => {
    for (const effect of transaction.effects) {
      if (effect.is(change)) {
        const { doc } = transaction.state;
        const lines = [...effect.value].filter(([line]) => line >= 1 && line <= doc.lines).sort((a, b) => a[0] - b[0]);
        return Decoration.set(lines.map(([line, ranks]) => decoration(ranks).range(doc.line(line).from)));
      }
    }
    return shown.map(transaction.changes);
  },
  provide: field => EditorView.decorations.from(field)
});

const extension: Extension = marks;

function decoration(ranks: number[]): Decoration {
  const label = `⏸ ${formatRanks(ranks)}`;
  return Decoration.line({ attributes: { class: 'jdist-PausedLine', 'data-paused': label } });
}

/** Marks these lines of the editor, and no others. An editor that cannot be marked stays as it is. */
export function markPaused(editor: CodeEditor.IEditor | null, lines: PausedLines): void {
  if (!(editor instanceof CodeMirrorEditor) || editor.isDisposed) {
    return;
  }
  if (editor.editor.state.field(marks, false) === undefined) {
    if (!lines.size) {
      return;
    }
    editor.injectExtension(extension);
  }
  editor.editor.dispatch({ effects: change.of(lines) });
}
