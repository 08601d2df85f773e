// What a comparison shows about one team: the same words and numbers as in the terminal.
import type { ReactNode } from 'react';
import type { FindingsView } from '../api/client';
import { Panel } from './small';

const TONES: Record<string, string> = { better: 'good', worse: 'bad' };

export function Word({ word }: { word: string }) {
  return <span className={`tag ${TONES[word] ?? ''}`}>{word}</span>;
}

export function Verdict({ value, note, title }: { value: FindingsView; note?: ReactNode; title?: string }) {
  return (
    <Panel title={title ?? value.question} tools={<Word word={value.answer} />}>
      <div className="verdict">
        {note && <p className="small dim">{note}</p>}
        {Object.entries(value.headings).map(([part, heading]) => {
          const lines = value.lines.filter((line) => line.part === part);
          if (part === 'next')
            return lines.map((line) => (
              <p key={line.text} className="small">
                {line.text}
              </p>
            ));
          return (
            <section key={part} aria-label={heading}>
              <h3>{heading}</h3>
              <dl>
                {lines.map((line) => (
                  <div key={line.subject}>
                    <dt>{line.subject}</dt>
                    <dd>
                      {line.word && <Word word={line.word} />} <span>{line.text}</span>
                    </dd>
                  </div>
                ))}
              </dl>
            </section>
          );
        })}
      </div>
    </Panel>
  );
}
