/** The verdict: why a run does not move, and the ways out as buttons. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import * as React from 'react';

import { IVerdict } from '../api';
import { CommandIDs } from '../tokens';
import { interrupted } from '../words';
import { IContext, Section } from './section';

export class Verdicts extends Section {
  constructor(context: IContext) {
    super(context, 'verdict', context.trans.__('Verdict'));
  }

  protected render(): JSX.Element {
    const { clusters, choice, commands, trans } = this.context;
    const cluster = clusters.current;
    return (
      <div className="jdist-scroller" role="status">
        {(cluster?.verdicts ?? []).map(each => (
          <Verdict
            key={each.run}
            verdict={each}
            trans={trans}
            choose={ranks => choice.choose(ranks)}
            take={command => void commands.execute(...way(command, cluster?.name ?? ''))}
          />
        ))}
      </div>
    );
  }
}

interface IProps {
  verdict: IVerdict;
  trans: TranslationBundle;
  choose: (ranks: number[]) => void;
  take: (command: string) => void;
}

function Verdict(props: IProps): JSX.Element {
  const { verdict, trans, choose, take } = props;
  const { headline, details, responsible, waiting, ways, is_certain } = verdict;
  return (
    <section className={`jdist-judged jdist-mod-${is_certain ? 'bad' : 'busy'}`}>
      <p className="jdist-headline">
        <span className="jdist-sign" aria-hidden="true">
          {is_certain ? '✕' : '◔'}
        </span>
        {headline}
      </p>
      {details.length > 0 && <pre tabIndex={0}>{details.join('\n')}</pre>}
      <p className="jdist-ways">
        {ways.map(({ command, effect }) => (
          <button key={command} className="jp-mod-styled" title={effect} onClick={() => take(command)}>
            <code>{command}</code>
            <span>{effect}</span>
          </button>
        ))}
      </p>
      <p className="jdist-choices">
        {responsible.length > 0 && (
          <button className="jdist-link" onClick={() => choose(responsible)}>
            {trans.__('Show who is waited for')}
          </button>
        )}
        {waiting.length > 0 && (
          <button className="jdist-link" onClick={() => choose(waiting)}>
            {trans.__('Show who waits')}
          </button>
        )}
      </p>
    </section>
  );
}

/** What a way out is here: an interrupt is done at once; what needs more to be typed becomes a cell. */
function way(command: string, cluster: string): [string, ReadonlyPartialJSONObject] {
  const ranks = interrupted(command);
  return ranks === undefined
    ? [CommandIDs.insertCell, { code: `${command}\n` }]
    : [CommandIDs.interrupt, { cluster, ranks: ranks || 'all' }];
}
