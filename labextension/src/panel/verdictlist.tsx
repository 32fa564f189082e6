/** The verdicts on a cluster's runs: why they do not move, and the suggested actions as buttons. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { CommandToolbarButton } from '@jupyterlab/ui-components';
import * as React from 'react';

import { ICluster } from '../api';
import { IRemedy, IVerdictRow } from '../generated/server';
import { effectOf, labelOf, stepOf } from '../remedy';
import { VERDICT_SIGN } from '../states';
import { CommandIDs } from '../tokens';
import { IContext, Section } from './section';

export class VerdictList extends Section {
  constructor(context: IContext) {
    const { commands, trans } = context;
    super(context, 'verdict', trans.__('Verdict'));
    const args = { ranks: [] }; // that of the verdict, whichever ranks are selected
    [CommandIDs.goToCell, CommandIDs.copyVerdict].forEach(id =>
      this.toolbar.addItem(id, new CommandToolbarButton({ commands, id, args, label: '' }))
    );
  }

  protected render(): JSX.Element {
    const { clusters, selection, commands, trans } = this.context;
    const cluster = clusters.current;
    return (
      <div className="jdist-scroller" role="status">
        {(cluster?.verdicts ?? []).map(each => (
          <Verdict
            key={each.run}
            isOneOfSeveral={(cluster?.verdicts?.length ?? 0) > 1}
            verdict={each}
            trans={trans}
            select={ranks => selection.select(ranks)}
            take={remedy => void commands.execute(...commandOf(remedy, each.run, cluster))}
            act={command => void commands.execute(command, { cluster: cluster?.name ?? '', run: each.run })}
          />
        ))}
      </div>
    );
  }
}

interface IVerdictProps {
  verdict: IVerdictRow;
  /** The buttons in the section's title are about the first one only, or about all. */
  isOneOfSeveral: boolean;
  trans: TranslationBundle;
  select: (ranks: number[]) => void;
  take: (remedy: IRemedy) => void;
  act: (command: string) => void;
}

function Verdict(props: IVerdictProps): JSX.Element {
  const { verdict, isOneOfSeveral, trans, select, take, act } = props;
  const { headline, details, responsible, waiting, remedies, is_certain } = verdict;
  return (
    <section className={`jdist-finding jdist-mod-${is_certain ? 'bad' : 'busy'}`}>
      <p className="jdist-headline">
        <span className="jdist-sign" aria-hidden="true">
          {VERDICT_SIGN}
        </span>
        {headline}
      </p>
      <p className="jdist-remedies">
        {remedies.map(remedy => (
          <button key={labelOf(remedy)} className="jp-mod-styled" title={effectOf(remedy)} onClick={() => take(remedy)}>
            <code>{labelOf(remedy)}</code>
            <span>{effectOf(remedy)}</span>
          </button>
        ))}
      </p>
      <p className="jdist-choices">
        {responsible.length > 0 && (
          <button className="jdist-link" onClick={() => select(responsible)}>
            {trans.__('Select the responsible ranks')}
          </button>
        )}
        {waiting.length > 0 && (
          <button className="jdist-link" onClick={() => select(waiting)}>
            {trans.__('Select the waiting ranks')}
          </button>
        )}
        {isOneOfSeveral && (
          <button className="jdist-link" onClick={() => act(CommandIDs.goToCell)}>
            {trans.__('Go to the cell')}
          </button>
        )}
        {isOneOfSeveral && (
          <button className="jdist-link" onClick={() => act(CommandIDs.copyVerdict)}>
            {trans.__('Copy the verdict')}
          </button>
        )}
      </p>
      {details.length > 0 && <pre tabIndex={0}>{details.join('\n')}</pre>}
    </section>
  );
}

/** The command that carries out a remedy, and its arguments. */
function commandOf(remedy: IRemedy, run: number, cluster?: ICluster): [string, ReadonlyPartialJSONObject] {
  const step = stepOf(remedy, true);
  const at = { cluster: cluster?.name ?? '', id: cluster?.cluster ?? '' };
  if ('beside' in step) {
    return [CommandIDs.runBeside, { ...at, run, ranks: step.beside, isShown: true }];
  }
  if ('resume' in step) {
    return [CommandIDs.continue, { ...at, ranks: step.resume || 'all' }];
  }
  if ('cell' in step) {
    return [CommandIDs.insertCell, { code: step.cell }];
  }
  return [CommandIDs.interrupt, { ...at, ranks: step.interrupt || 'all', ...(step.run ? { run } : {}) }];
}
