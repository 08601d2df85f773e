// Below the timeline of a recorded episode: where it is from, and the group whose replies were compared in the turn that is shown.
import type { Frame, GroupPage } from '../api/client';
import { holdsGroup, isExport } from '../lib/exported';
import { useFetched } from '../lib/fetching';
import { link } from '../lib/route';
import { showLive, useStore, type Recorded } from '../lib/store';

export function FromRun({ frame }: { frame: Frame | undefined }) {
  const recorded = useStore((state) => state.recorded);
  if (!recorded) return null;
  return <Line recorded={recorded} frame={frame} />;
}

function Line({ recorded, frame }: { recorded: Recorded; frame: Frame | undefined }) {
  const { run, iteration, episode } = recorded;
  const { value } = useFetched<GroupPage>(`runs/${encodeURIComponent(run)}/groups`, { iteration, count: 5_000 });
  const group = value?.rows.find((row) => row.episode === episode && row.turn === frame?.turn && row.actor === frame?.actor);
  return (
    <p className="row small from">
      <span className="tag accent">recorded</span>
      <a className="ellipsis mono" href={link(['runs', run, 'episode'], { iteration, episode, turn: frame?.step || null })}>
        {run} / iteration {iteration} / {episode}
      </a>
      {group && holdsGroup(group.key) && (
        <a href={link(['runs', run, 'group'], { key: group.key })}>the {group.size} replies compared in this turn</a>
      )}
      <button type="button" onClick={showLive}>
        {isExport ? 'close' : 'back to the live company'}
      </button>
    </p>
  );
}
