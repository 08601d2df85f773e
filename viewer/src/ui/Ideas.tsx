// Races worth a first look, as cards that start them.
import type { Form, Suggestion } from '../lib/race';
import { Panel } from './small';

export function Ideas({ ideas, disabled, run }: { ideas: readonly Suggestion[]; disabled: boolean; run: (form: Form) => void }) {
  return (
    <Panel title="Races to begin with" tools={<span className="small dim">or choose two or three teams above</span>}>
      <ul className="ideas">
        {ideas.map(({ title, why, form }) => (
          <li key={title} className="stack">
            <h3>{title}</h3>
            <p className="small dim">{why}</p>
            <p className="small">
              {form.scenario} · seed {form.seed} · {form.days} days
            </p>
            <button type="button" disabled={disabled} aria-label={`Run this race: ${title}`} onClick={() => run(form)}>
              Run this race
            </button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
