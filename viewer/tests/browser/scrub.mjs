// A whole episode of 420 turns and 30 nights: every frame that is scrubbed to shows its exact state, and a fast drag ends where it ends.
import { api, assert, described, played, run } from './lib.mjs';

await api('reset', { days: 30, seed: 1004, pace_s: 0, playing: true });
const { frames } = await played();
assert.equal(frames.length, 451);
const dollars = (value) => {
  const size = Math.abs(value);
  const sign = value < 0 ? '−' : '';
  if (size >= 1e6) return `${sign}$${(size / 1e6).toFixed(2)}M`;
  if (size >= 1e4) return `${sign}$${(size / 1e3).toFixed(1)}k`;
  return `${sign}$${new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 }).format(size)}`;
};
await run(async (open) => {
  const page = await open('/dashboard');
  await page.waitForFunction(() => document.querySelector('.timeline input').value === '450');
  const expected = frames.map((frame) => ({
    value: dollars(frame.kpis.value),
    cash: dollars(frame.kpis.cash),
    customers: String(frame.kpis.customers),
    turn: frame.turn < 0 ? 'The company starts.' : described(frame)[0],
  }));
  const result = await page.evaluate(async (wanted) => {
    const slider = document.querySelector('.timeline input');
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
    const to = (seq) => {
      set.call(slider, String(seq));
      slider.dispatchEvent(new Event('input', { bubbles: true }));
    };
    const shown = () => ({
      value: document.querySelectorAll('.kpi dd')[0].firstChild.textContent,
      cash: document.querySelectorAll('.kpi dd')[2].firstChild.textContent,
      customers: document.querySelector('.board section[aria-label=won] h3 span').textContent,
      turn: slider.getAttribute('aria-valuetext'),
    });
    const same = (seq) => {
      const now = shown();
      const one = wanted[seq];
      return now.value === one.value && now.cash === one.cash && now.customers === one.customers && now.turn.startsWith(one.turn);
    };
    const settles = async (seq) => {
      const until = performance.now() + 60_000;
      while (!same(seq)) {
        if (performance.now() > until) return false;
        await new Promise((resolve) => setTimeout(resolve, 2));
      }
      return true;
    };
    const lost = [];
    for (let seq = 0; seq < wanted.length; seq++) {
      to(seq);
      if (!(await settles(seq))) lost.push([seq, shown(), wanted[seq]]);
    }
    // A drag: hundreds of moves before the page has drawn one of them.
    for (const end of [17, 403, 255]) {
      for (let seq = 0; seq < wanted.length; seq++) to((seq * 37) % wanted.length);
      to(end);
      if (!(await settles(end))) lost.push(['drag', end, shown()]);
    }
    return lost;
  }, expected);
  assert.deepEqual(result, []);
});
