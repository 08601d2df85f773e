// A signed deal throws confetti, a customer who churns walks out of the lobby, and an event says what it does, in 2D and in 3D.
import { api, assert, becomes, played, run } from './lib.mjs';

const { event_effects: effects } = await api('config');
const story = async (asked) => {
  await api('reset', { pace_s: 0, playing: true, ...asked });
  return (await played()).frames;
};
const seats = Object.fromEntries(['ceo', 'dev', 'marketing', 'sales', 'content', 'hr'].map((role) => [role, 'heuristic']));
const became = (stage) => (frame) => frame.moves.some((move) => move.after === stage);

await run(async (open) => {
  for (const stage of ['2d', '3d']) {
    let frames = await story({ seed: 1003, days: 20, seats });
    const page = await open('/office?lowfx', { stage });
    const slider = page.getByRole('slider', { name: 'Turn', exact: true });
    const banner = page.getByRole('list', { name: 'What just happened' });
    const picture = async (name) => {
      if (process.env.PICTURES) await page.screenshot({ path: `${process.env.PICTURES}/${name}-${stage}.png` });
    };
    const show = async (seq) => {
      await becomes(() => slider.getAttribute('max'), String((await api('state')).frames.length - 1));
      await slider.fill(String(seq));
    };
    await page.locator('.stage[data-ready=true] canvas').waitFor();
    const won = frames.find(became('won'));
    const { name } = won.moves.find((move) => move.after === 'won');
    await show(won.seq);
    await banner.getByText(new RegExp(`^${name} signed, \\$`)).waitFor();
    await becomes(() => page.locator('.confetti i').count(), 28);
    // It has moved, and then rests.
    const fallen = () => page.locator('.labels').evaluate((layer) => Number(layer.style.getPropertyValue('--fallen')));
    await becomes(async () => (await fallen()) > 0.4, true);
    await picture('won');
    const event = frames.find((frame) => frame.events.length);
    await show(event.seq);
    await banner.getByText(effects[event.events[0]]).waitFor();
    await picture('event');

    frames = await story({ scenario: 'churn', days: 20, seed: 1007, seats: { ...seats, sales: 'do-nothing' } });
    const left = frames.find(became('churned'));
    assert.ok(left, 'no customer churns in this company');
    await show(left.seq);
    const leaver = page.locator('.leaver').first();
    await leaver.getByText(`${left.moves.find((move) => move.after === 'churned').name} leaves`).waitFor();
    await becomes(() => leaver.evaluate((one) => one.style.visibility), 'visible');
    const at = () => leaver.evaluate((one) => one.style.transform);
    const before = await at();
    await picture('churned');
    await show(left.seq + 1);
    await becomes(async () => (await at()) !== before, true);
    await show(left.seq + 3);
    await becomes(() => page.locator('.leaver').count(), 0);
    await page.context().close();
  }
});
