// What a turn of a shell agent changed in its files, on demand: the server executes the episode's commands again for it.
import { useState } from 'react';
import type { ChangedFiles, FileDiff } from '../api/client';
import { kindOf, summary } from '../lib/diff';
import { isExport } from '../lib/exported';
import { useFetched } from '../lib/fetching';
import { Waited } from '../ui/small';

export interface RecordedTurn {
  run: string;
  iteration: number;
  episode: string;
  /** From 0. */
  turn: number;
}

/** Nothing in a file that was exported: no server is there to execute a command. */
export function WhatChanged({ at }: { at: RecordedTurn }) {
  const [open, setOpen] = useState(false);
  // Asked once: hiding the answer and showing it again executes nothing.
  const [asked, setAsked] = useState(false);
  const { run, ...query } = at;
  const { value, error } = useFetched<ChangedFiles>(asked ? `runs/${encodeURIComponent(run)}/files` : null, query);
  if (isExport) return null;
  return (
    <div className="diffs" data-testid="what-changed">
      <div>
        <button
          type="button"
          aria-expanded={open}
          onClick={() => {
            setOpen(!open);
            setAsked(true);
          }}
        >
          {open ? 'Hide' : 'Show'} what changed
        </button>
      </div>
      {open && !value && !error && (
        <p className="small dim">
          <span role="status">Executing the commands again in a sandbox…</span> <Waited />
        </p>
      )}
      {open && error && (
        <p className="small" role="alert">
          {error}
        </p>
      )}
      {open && value && <Diffs changed={value} />}
    </div>
  );
}

export function Diffs({ changed }: { changed: ChangedFiles }) {
  return (
    <>
      <p className="small dim">
        The commands were executed again in a sandbox. What they printed and the sizes of the files are as recorded.
      </p>
      {changed.files.map((file) => (
        <Diff key={file.path} file={file} />
      ))}
      {changed.further > 0 && <p className="small dim">and {changed.further} more files</p>}
    </>
  );
}

function Diff({ file }: { file: FileDiff }) {
  return (
    <section aria-label={`${file.path}, ${file.what}`}>
      <h4 className="small">
        <span className="mono">{file.path}</span> <span className="dim">{summary(file.lines, file.further)}</span>
      </h4>
      {file.note && <p className="small dim">{file.note}</p>}
      {file.lines.length > 0 && (
        <pre className="block diff" tabIndex={0} aria-label={`What changed in ${file.path}`}>
          {file.lines.map((line, index) => (
            <Line key={index} line={line} />
          ))}
        </pre>
      )}
      {file.further > 0 && <p className="small dim">and {file.further} more lines</p>}
    </section>
  );
}

/** A file's line has its sign apart: the text behind it may begin with one, too. */
function Line({ line }: { line: string }) {
  const kind = kindOf(line);
  const signed = kind === 'added' || kind === 'removed' || kind === 'same';
  return (
    <span className={kind}>
      {signed && <b>{line[0]}</b>}
      {signed ? line.slice(1) : line}
      {'\n'}
    </span>
  );
}
