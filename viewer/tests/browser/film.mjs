// Pictures of a saved episode, one per frame of a film: node film.mjs EPISODE.html FOLDER FIRST SECONDS FPS TURNS_PER_SECOND
// The page's clock is not the machine's: a slow machine takes the same pictures as a fast one.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';
import { FLAGS, PATIENCE } from './lib.mjs';

const [episode, folder, first, seconds, fps, speed] = process.argv.slice(2);
const [width, height] = [1366, 900];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
const page = await browser.newPage({ viewport: { width, height }, colorScheme: 'dark' });
page.setDefaultTimeout(PATIENCE);
const problems = [];
page.on('pageerror', (error) => problems.push(error.message));
await page.clock.install();
await page.goto(pathToFileURL(episode).href);
await page.locator('.stage[data-ready=true] canvas').waitFor();
await page.getByRole('slider', { name: 'Turn', exact: true }).fill(first);
await page.locator('.timeline select').first().selectOption(speed);
await page.clock.pauseAt(new Date(Date.now() + 60_000));
await page.clock.runFor(2_000);
await page.keyboard.press('Space');
for (let index = 0; index < seconds * fps; index++) {
  await page.clock.runFor(Math.round(1000 / fps));
  await page.screenshot({ path: join(folder, `${String(index).padStart(4, '0')}.png`) });
}
await browser.close();
if (problems.length) throw new Error(problems.join('\n'));
