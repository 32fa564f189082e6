/** The commands that pause and resume ranks. */

import { TranslationBundle } from '@jupyterlab/translation';
import {
  fastForwardIcon,
  LabIcon,
  pauseIcon,
  runIcon,
  stepIntoIcon,
  stepOutIcon,
  stepOverIcon
} from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';

import { Actions, Args } from '../actions';
import { StepKind } from '../generated/server';
import { isPaused } from '../paused';
import { CommandIDs, IClusters } from '../tokens';

/** A way to resume: its icon, and its labels for all paused ranks and for some. */
interface IStep {
  how: StepKind;
  icon: LabIcon;
  all: string;
  some: (ranks: string) => string;
  caption: string;
}

/** The commands by name. */
export function stepCommands(
  actions: Actions,
  trans: TranslationBundle
): Record<string, CommandRegistry.ICommandOptions> {
  const commands: Record<string, CommandRegistry.ICommandOptions> = {
    [CommandIDs.pause]: {
      label: args => {
        const ranks = actions.ranksText(args);
        return ranks ? trans.__('Pause ranks %1', ranks) : trans.__('Pause all ranks');
      },
      caption: trans.__('Pause running ranks at their next line of Python; cells then run in the paused frames'),
      icon: pauseIcon,
      isEnabled: args => actions.isAvailable(args) && actions.canPause(args),
      execute: args => actions.pause(args)
    },
    [CommandIDs.chooseFrame]: {
      label: trans.__('Run cells in this frame'),
      isEnabled: args => actions.isAvailable(args) && actions.isPaused(args),
      execute: args => actions.chooseFrame(args)
    }
  };
  for (const [id, step] of Object.entries(steps(trans))) {
    commands[id] = {
      label: args => {
        const ranks = actions.ranksText(args);
        return ranks ? step.some(ranks) : step.all;
      },
      caption: step.caption,
      icon: step.icon,
      isEnabled: args =>
        actions.isAvailable(args) && (step.how === 'continue' ? actions.canContinue(args) : actions.isPaused(args)),
      execute: (args: Args) => actions.resume(args, step.how)
    };
  }
  return commands;
}

/** Marks the page while ranks of the cluster in the panel are paused, since shortcuts apply only then. */
export function notePauses(clusters: IClusters): void {
  clusters.changed.connect(() => {
    document.body.toggleAttribute('data-jdist-paused', isPaused(clusters.current));
  });
}

function steps(trans: TranslationBundle): Record<string, IStep> {
  return {
    [CommandIDs.continue]: {
      how: 'continue',
      icon: runIcon,
      all: trans.__('Continue all paused ranks'),
      some: ranks => trans.__('Continue ranks %1', ranks),
      caption: trans.__('Resume paused ranks')
    },
    [CommandIDs.next]: {
      how: 'next',
      icon: stepOverIcon,
      all: trans.__('Next line on all paused ranks'),
      some: ranks => trans.__('Next line on ranks %1', ranks),
      caption: trans.__('Run to the next line of the chosen frame')
    },
    [CommandIDs.step]: {
      how: 'step',
      icon: stepIntoIcon,
      all: trans.__('Step on all paused ranks'),
      some: ranks => trans.__('Step on ranks %1', ranks),
      caption: trans.__('Run to the next line, stepping into functions')
    },
    [CommandIDs.return]: {
      how: 'return',
      icon: stepOutIcon,
      all: trans.__('Return on all paused ranks'),
      some: ranks => trans.__('Return on ranks %1', ranks),
      caption: trans.__('Run until the chosen frame is about to return')
    },
    [CommandIDs.nextCall]: {
      how: 'next_call',
      icon: fastForwardIcon,
      all: trans.__('Next collective on all paused ranks'),
      some: ranks => trans.__('Next collective on ranks %1', ranks),
      caption: trans.__('Run until each rank is about to begin its next collective or transfer')
    }
  };
}
