/** The list of clusters: the size and the state of each, and buttons for what can be done with it. */

import { TranslationBundle } from '@jupyterlab/translation';
import {
  addIcon,
  closeIcon,
  codeIcon,
  CommandToolbarButton,
  LabIcon,
  linkIcon,
  refreshIcon,
  runIcon
} from '@jupyterlab/ui-components';
import * as React from 'react';

import { ICluster, RequestError } from '../api';
import { joinParts } from '../format';
import { addingText, clusterSize, clusterState, needsLogin, staleness } from '../states';
import { CommandIDs } from '../tokens';
import { openClusterMenu } from './menu';
import { IContext, Section, State } from './section';

/** What a notebook's cell says to start a cluster. */
const FIRST_CELL = '%load_ext jdist\n%dist start -n 4';

export class ClusterList extends Section {
  constructor(context: IContext) {
    const { commands, trans } = context;
    super(context, 'clusters', trans.__('Clusters'));
    const button = (id: string, icon: LabIcon, caption: string): CommandToolbarButton =>
      new CommandToolbarButton({ commands, id, icon, caption, label: '' });
    this.toolbar.addItem('start', button(CommandIDs.start, addIcon, trans.__('Start a cluster')));
    this.toolbar.addItem('refresh', button(CommandIDs.refresh, refreshIcon, trans.__('Refresh the list')));
  }

  protected render(): JSX.Element {
    const { clusters, trans } = this.context;
    if (clusters.problem) {
      return <Trouble problem={clusters.problem} {...this._buttons} />;
    }
    if (!clusters.isKnown) {
      return <p className="jdist-empty">{trans.__('Loading…')}</p>;
    }
    if (!clusters.all.length) {
      return (
        <div className="jdist-empty">
          <p>{trans.__('You have no clusters.')}</p>
          <button className="jp-mod-styled jp-mod-accept" onClick={() => this._buttons.act(CommandIDs.start)}>
            {trans.__('Start a cluster…')}
          </button>
          <p>{trans.__('Or type in a notebook:')}</p>
          <pre>{FIRST_CELL}</pre>
        </div>
      );
    }
    return (
      <ul className="jdist-list" aria-label={trans.__('Clusters')}>
        {clusters.all.map(each => (
          <Item
            key={each.name}
            cluster={each}
            isCurrent={each === clusters.current}
            age={each.state === 'reconnecting' ? '' : staleness(each, clusters.lostAt, Date.now(), trans)}
            {...this._buttons}
          />
        ))}
      </ul>
    );
  }

  private _buttons: IButtons = {
    trans: this.context.trans,
    act: (id, cluster) => void this.context.commands.execute(id, cluster === undefined ? {} : { cluster }),
    openMenu: (cluster, x, y) => openClusterMenu(this.context.commands, cluster, { x, y }, this.context.trans)
  };
}

interface IButtons {
  trans: TranslationBundle;
  act: (command: string, cluster?: string) => void;
  openMenu: (cluster: string, x: number, y: number) => void;
}

function Item(props: IButtons & { cluster: ICluster; isCurrent: boolean; age: string }): JSX.Element {
  const { cluster, isCurrent, age, trans, act, openMenu } = props;
  const { name } = cluster;
  const silence = cluster.reason || cluster.silences?.join(' ') || cluster.left_out?.join(' ');
  const reason = cluster.starting ?? (addingText(cluster, trans) || silence);
  const menu = trans.__('Actions for cluster %1', name);
  const isReady = cluster.state === 'ready' && cluster.starting === undefined;
  const stopTitle =
    cluster.starting === undefined
      ? trans.__('Stop cluster %1', name)
      : cluster.starting === null
        ? trans.__('Remove the failed start of %1', name)
        : trans.__('Cancel the start of %1', name);
  return (
    <li
      className={isCurrent ? 'jdist-item jdist-mod-current' : 'jdist-item'}
      data-cluster={name}
      onContextMenu={event => {
        event.preventDefault();
        event.stopPropagation();
        openMenu(name, event.clientX, event.clientY);
      }}
    >
      <button className="jdist-choose" aria-pressed={isCurrent} onClick={() => act(CommandIDs.choose, name)}>
        <span className="jdist-name">{name}</span>
        <State state={clusterState(cluster, trans, Date.now())} />
        <span className="jdist-size">{joinParts(clusterSize(cluster, trans), age)}</span>
        {reason ? <span className="jdist-why">{reason}</span> : null}
      </button>
      <span className="jdist-acts">
        {isReady && (
          <Act
            icon={linkIcon}
            title={trans.__('Attach this notebook to %1', name)}
            command={CommandIDs.attach}
            {...props}
          />
        )}
        {cluster.has_instructions && (
          <Act
            icon={codeIcon}
            title={trans.__('Show the line with which nodes join %1', name)}
            command={CommandIDs.instructions}
            {...props}
          />
        )}
        <Mend {...props} />
        {cluster.state !== 'foreign' && <Act icon={closeIcon} title={stopTitle} command={CommandIDs.stop} {...props} />}
        <button
          className="jdist-act jdist-more"
          title={menu}
          aria-label={menu}
          aria-haspopup="menu"
          onClick={event => {
            const { left, bottom } = event.currentTarget.getBoundingClientRect();
            openMenu(name, left, bottom);
          }}
        >
          ⋯
        </button>
      </span>
    </li>
  );
}

/** A button for what makes a cluster usable again. */
function Mend({ cluster, trans, act }: IButtons & { cluster: ICluster }): JSX.Element | null {
  const isOrphaned = cluster.state === 'orphaned';
  if (!isOrphaned && !needsLogin(cluster)) {
    return null;
  }
  const command = isOrphaned ? CommandIDs.revive : CommandIDs.logIn;
  return (
    <button className="jdist-act jdist-mod-worded" onClick={() => act(command, cluster.name)}>
      <runIcon.react tag="span" aria-hidden="true" />
      {isOrphaned ? trans.__('Revive') : trans.__('Log in')}
    </button>
  );
}

function Act(props: IButtons & { cluster: ICluster; icon: LabIcon; title: string; command: string }): JSX.Element {
  return (
    <button
      className="jdist-act"
      title={props.title}
      aria-label={props.title}
      onClick={() => props.act(props.command, props.cluster.name)}
    >
      <props.icon.react tag="span" aria-hidden="true" />
    </button>
  );
}

/** Why there is no list, and what the user can do. */
function Trouble(props: IButtons & { problem: RequestError }): JSX.Element {
  const { problem, trans, act } = props;
  return (
    <div className="jdist-empty" role="alert">
      <p>{causeText(problem, trans)}</p>
      <p>{adviceText(problem, trans)}</p>
      <button className="jp-mod-styled" onClick={() => act(CommandIDs.refresh)}>
        {trans.__('Try again')}
      </button>
    </div>
  );
}

function causeText(problem: RequestError, trans: TranslationBundle): string {
  switch (problem.status) {
    case 404:
      return trans.__('This Jupyter server has no jdist extension.');
    case 401:
    case 403:
      return trans.__('You are not allowed to see clusters on this server: %1', problem.message);
    default:
      return problem.message;
  }
}

function adviceText(problem: RequestError, trans: TranslationBundle): string {
  switch (problem.status) {
    case 404:
      return trans.__(
        'Install jdist in the environment that the server runs in (pip install jdist, then: jupyter server extension enable jdist), and restart the server.'
      );
    case 401:
    case 403:
      return trans.__('Log in again, or ask the administrator of this server for permission to read jdist.');
    case 0:
      return trans.__('The list is loaded as soon as the server can be reached again.');
    case 200:
      return trans.__('If jdist was updated, restart the Jupyter server and reload this page.');
    default:
      return trans.__('The log of the Jupyter server may say more.');
  }
}
