// report.html: results with their intervals, a comparison of teams, and the way to the recorded run behind them.
import { held } from '../lib/exported';
import { go, link } from '../lib/route';
import { Panel, Scroll } from '../ui/small';
import { Verdict } from '../ui/Verdict';
import { COLORS, ComparisonPanels, Whiskers } from './Matched';

export default function Report({ query }: { query: URLSearchParams }) {
  const report = held?.report;
  if (!report) return <p className="empty">This file holds no report.</p>;
  const { comparison } = report;
  const metric = comparison?.metrics.find((one) => one === query.get('metric')) ?? report.metric;
  const featured = comparison?.teams.find((one) => one === query.get('team')) ?? report.featured;
  return (
    <div className="stack">
      <div className="row spread">
        <h1>{report.title}</h1>
        <span className="small dim">onthejob {report.version}</span>
      </div>
      {report.lead && <p>{report.lead}</p>}
      {report.verdict && <Verdict value={report.verdict} />}
      {report.notes.map((note) => (
        <p key={note}>{note}</p>
      ))}
      {held?.run && (
        <p>
          <a href={link(['runs', held.run.name])}>Run {held.run.name}: curves, groups, episodes, configuration</a>
        </p>
      )}
      <p className="small dim">
        Intervals are 95 % bootstrap intervals that resample whole episodes; differences are paired, by state or by task. A result
        counts only when its interval excludes 0.
      </p>
      {comparison && metric && (
        <ComparisonPanels
          fold
          value={comparison}
          metric={metric}
          featured={featured}
          change={(next) => go(['report'], { metric, team: featured, ...next })}
        />
      )}
      {report.pictures.map((picture, place) => (
        // The first picture is the result where there is no comparison.
        <details className="fold" key={picture.title} open={!comparison && place === 0}>
          <summary>{picture.title}</summary>
          <Panel title={picture.title} tools={<span className="small dim">{picture.unit}</span>}>
            <Whiskers
              zero
              label={picture.title}
              rows={picture.rows.map((row, index) => ({ ...row, color: COLORS[index % COLORS.length]! }))}
            />
          </Panel>
        </details>
      ))}
      {report.tables.map((table) => (
        <details className="fold" key={table.title}>
          <summary>{table.title}</summary>
          <Scroll label={table.title}>
            <table>
              <thead>
                <tr>
                  {table.columns.map((name) => (
                    <th scope="col" key={name}>
                      {name}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {table.rows.map((row, index) => (
                  <tr key={index}>
                    {row.map((cell, column) => (
                      <td key={column}>{cell}</td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        </details>
      ))}
    </div>
  );
}
