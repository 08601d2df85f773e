// What people write about a run: a star, tags and a note. Kept next to its record, never in it.
import { useState } from 'react';
import { writeNotes, type NotesView } from '../api/client';
import { isExport } from '../lib/exported';
import { refused, tagsOf } from '../lib/runs';
import { act, useStore } from '../lib/store';

export function Star({ run, notes, wrote }: { run: string; notes: NotesView; wrote: (notes: NotesView) => void }) {
  const canChange = useStore((state) => state.canChange) && !isExport;
  const toggle = async (): Promise<void> => {
    const kept = await act(writeNotes(run, { ...notes, star: !notes.star }));
    if (kept) wrote(kept);
  };
  return (
    <button
      type="button"
      className="star"
      aria-pressed={notes.star}
      aria-label={`${run} is a baseline`}
      title={
        canChange
          ? 'Baseline: starred runs stand first, and the only starred one is what the others are compared with'
          : 'Open the address that onthejob view printed to change this'
      }
      disabled={!canChange}
      onClick={() => void toggle()}
    >
      {notes.star ? '★' : '☆'}
    </button>
  );
}

export function Tags({ notes }: { notes: NotesView }) {
  return (
    <>
      {notes.tags.map((tag) => (
        <span className="tag" key={tag}>
          {tag}
        </span>
      ))}
      {notes.note && <span className="small dim">{notes.note.split('\n')[0]}</span>}
    </>
  );
}

export function NotesEditor({ run, notes, wrote }: { run: string; notes: NotesView; wrote: (notes: NotesView) => void }) {
  const canChange = useStore((state) => state.canChange) && !isExport;
  const [open, setOpen] = useState(false);
  const [tags, setTags] = useState('');
  const [note, setNote] = useState('');
  const edit = (): void => {
    setTags(notes.tags.join(', '));
    setNote(notes.note);
    setOpen(true);
  };
  const problem = refused(tagsOf(tags), note);
  const keep = async (): Promise<void> => {
    const kept = await act(writeNotes(run, { tags: tagsOf(tags), note, star: notes.star }));
    if (!kept) return;
    wrote(kept);
    setOpen(false);
  };
  if (!open)
    return (
      <span className="row">
        <Star run={run} notes={notes} wrote={wrote} />
        {notes.tags.map((tag) => (
          <span className="tag" key={tag}>
            {tag}
          </span>
        ))}
        {notes.note && <span className="note">{notes.note}</span>}
        {canChange && (
          <button type="button" onClick={edit}>
            {notes.tags.length || notes.note ? 'edit notes' : 'add tags or a note'}
          </button>
        )}
      </span>
    );
  return (
    <form
      className="notes"
      onSubmit={(event) => {
        event.preventDefault();
        void keep();
      }}
    >
      <label>
        tags, separated by commas
        <input value={tags} onChange={(event) => setTags(event.target.value)} />
      </label>
      <label>
        note
        <textarea rows={3} value={note} onChange={(event) => setNote(event.target.value)} />
      </label>
      <span className="row">
        <button type="submit" disabled={Boolean(problem)}>
          Keep
        </button>
        <button type="button" onClick={() => setOpen(false)}>
          Cancel
        </button>
        {problem && <span className="small bad">{problem}</span>}
      </span>
    </form>
  );
}
