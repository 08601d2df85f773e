// A comparison task by task: what each team reached, and the way to watch two of them race on it.
import { type ComparedTask, type ComparisonView, type PlayerInfo } from '../api/client';
import { useFetched } from '../lib/fetching';
import { compact, dollars } from '../lib/format';
import { companyOf, queryOfRace } from '../lib/race';
import { link } from '../lib/route';
import { useStore } from '../lib/store';
import { Panel, Scroll } from '../ui/small';

export function ComparedTasks({ value, metric, featured }: { value: ComparisonView; metric: string; featured: string }) {
  const { value: tasks } = useFetched<ComparedTask[]>(`comparisons/${encodeURIComponent(value.name)}/tasks`, { metric });
  const { value: players } = useFetched<PlayerInfo[]>('models');
  if (!tasks?.length) return null;
  const others = value.teams.filter((team) => team !== featured);
  const seated = (team: string): boolean => Boolean(players?.some(({ name, ready }) => name === team && ready));
  const shown = (number: number | null | undefined): string =>
    number === null || number === undefined ? '–' : metric === 'company_value' ? dollars(number) : compact(number);
  return (
    <Panel
      title={`${metric.replaceAll('_', ' ')}, task by task`}
      tools={<span className="small dim">a number leads to the race against {featured} on that company</span>}
    >
      <Scroll label="Task by task" max={420}>
        <table>
          <thead>
            <tr>
              <th scope="col">task</th>
              <th scope="col" className="num">
                {featured}
              </th>
              {others.map((team) => (
                <th scope="col" className="num" key={team}>
                  {team}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {tasks.map(({ task, values }) => {
              const company = companyOf(task);
              return (
                <tr key={task}>
                  <th scope="row">{company ? `${company.scenario} · seed ${company.seed} · ${company.days} days` : task}</th>
                  <td className="num">{shown(values[featured])}</td>
                  {others.map((team) => (
                    <td className="num" key={team}>
                      {company && seated(team) && seated(featured) ? (
                        <a
                          href={link(['race'], queryOfRace({ ...company, teams: [featured, team] }, {}))}
                          onClick={() => useStore.setState({ wantsRace: true })}
                          title={`Race ${featured} against ${team} on this company`}
                        >
                          {shown(values[team])}
                        </a>
                      ) : (
                        shown(values[team])
                      )}
                    </td>
                  ))}
                </tr>
              );
            })}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}
