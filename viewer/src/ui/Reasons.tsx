// Why a turn or a night paid what it paid, in words, the largest first.
import type { Frame } from '../api/client';
import { LEAST, shares, type Share } from '../lib/reasons';
import { firstSentence, signed } from '../lib/format';
import { useStore } from '../lib/store';
import { Meanings, Pay } from './small';

const GLYPHS: Record<string, string> = {
  deal: '◆',
  rule: '⚠',
  work: '✓',
  money: '$',
  product: '⚙',
  market: '◎',
  team: '●',
};

/** One reason in a list. */
export function Because({ share, named = false }: { share: Share; named?: boolean }) {
  const { reason, amount, parts } = share;
  const names = useStore((state) => state.config?.parts) ?? [];
  const meanings = useStore((state) => state.config?.part_meanings) ?? {};
  return (
    <li className="because" data-cause={reason.cause}>
      <span className="cause" aria-hidden="true">
        {GLYPHS[reason.cause]}
      </span>
      <span>
        {reason.text}
        {named && (
          <span className="small dim parts">
            {parts.map(([index, part]) => (
              <abbr key={index} title={meanings[names[index] ?? ''] ?? ''}>
                {names[index]} {parts.length > 1 && signed(part)}
              </abbr>
            ))}
          </span>
        )}
      </span>
      <Pay value={amount} />
    </li>
  );
}

/** The parts of a reward with their meanings: in one sentence each, or whole and folded. */
export function PartMeanings({ brief = false }: { brief?: boolean }) {
  const names = useStore((state) => state.config?.parts) ?? [];
  const meanings = useStore((state) => state.config?.part_meanings) ?? {};
  const said = names.map((name) => [name, brief ? firstSentence(meanings[name] ?? '') : (meanings[name] ?? '')] as const);
  return <Meanings of={said} fold={brief ? undefined : 'What the parts of a reward mean'} />;
}

/** All that a frame paid to a role, or to the team where `whose` is the night; small shares are folded. */
export function Reasons({ frame, whose }: { frame: Frame; whose: string }) {
  const all = shares(frame, whose);
  const large = all.filter(({ amount }) => Math.abs(amount) >= LEAST);
  const shown = large.length ? large : all.slice(0, 3);
  const rest = all.slice(shown.length);
  const sum = rest.reduce((total, { amount }) => total + amount, 0);
  if (!all.length) return <p className="small dim">It paid nothing to this role.</p>;
  return (
    <>
      <ul className="reasons" aria-label="What it was paid for">
        {shown.map((share) => (
          <Because key={share.reason.text} share={share} named />
        ))}
      </ul>
      {rest.length > 0 && (
        <details className="small">
          <summary>
            {rest.length} smaller {rest.length > 1 ? 'reasons' : 'reason'}, <Pay value={sum} />
          </summary>
          <ul className="reasons">
            {rest.map((share) => (
              <Because key={share.reason.text} share={share} named />
            ))}
          </ul>
        </details>
      )}
    </>
  );
}
