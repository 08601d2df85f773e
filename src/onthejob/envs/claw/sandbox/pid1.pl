# The first process inside a sandbox: runs each command in a fresh `bash -c` and leaves nothing alive after it, or all of them in
# one bash that persists, of which everything is stopped between two commands.
#
# This file runs alone, as process 1 of a pid namespace, with the system's Perl and none of its modules: that starts in a fifth
# of the processor time that Python takes (1.2 against 5.6 ms), which counts where a life is short. Nothing inside can signal
# process 1, and because its interpreter's file may be executed but not read, the kernel lets no process inside look into its
# memory or descriptors.
#
# Arguments: the socket's descriptor, that of a file in memory for long commands, bytes kept per stream, then call:NAME=NUMBER for
# the system calls that Perl does not offer, and limit:NUMBER=VALUE for the resource limits.
#
# Protocol on a stream socket, all numbers big-endian:
#     hello:    4-byte length, then the facts that the other side checks (credentials, namespaces)
#     request:  4-byte length, 1 byte for the persistent shell (1) or a fresh one (0), 8-byte timeout in milliseconds,
#               the command's bytes
#     reply:    4-byte length, 1 byte of bits (1 timed out, 2 the persistent shell has ended), 2 bytes exit code, 8 bytes stdout
#               size, 8 bytes stderr size, 4-byte length of what is kept of stdout, that, what is kept of stderr

use strict;

my $CHUNK = 65_536;
# Longest command handed over as an argument; the kernel's limit is 128 KiB. Longer ones go through the file in memory, which the
# broker made: nothing inside may make one.
my $INLINE_BYTES = 100_000;
my ($TIMED_OUT, $NOT_RUN, $SIGKILL, $SIGCONT, $SIGSTOP) = (124, 126, 9, 18, 19);
# Bits of a reply's first byte.
my ($WAS_LATE, $HAS_ENDED) = (1, 2);
# How often what stopped processes wrote is read: a pipe holds less, and one that is not stopped yet could write forever.
my $FROZEN_ROUNDS = 64;
my ($F_DUPFD, $RLIMIT_NOFILE, $EAGAIN) = (0, 7, 11);
my ($F_SETFD, $F_SETFL, $O_NONBLOCK, $O_CLOEXEC, $CLOCK_MONOTONIC, $WNOHANG) = (2, 4, 2048, 524_288, 1, 1);
my ($SIGCHLD, $SIG_BLOCK, $SIG_SETMASK) = (17, 0, 2);
# A kernel's `struct sigaction` of zeros: the default, on every 64-bit machine; and the number of signals.
my ($DEFAULT, $SIGNAL_SET_BYTES, $SIGNALS) = ("\0" x 32, 8, 64);
my %WANTED = map { $_ => 1 } qw(Uid CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Groups);

my (%call, $control, $control_number, $script, $keep, $ends);
# The persistent shell, while there is one; and the descriptor by which it tells that a command has ended: the last one, so that
# none of a command's own is in the way.
my ($kept, $end);

main(@ARGV);

sub main {
    ($control_number, my $script_number, $keep) = (shift() + 0, shift() + 0, shift() + 0);
    my %limit;
    for my $word (@_) {
        my ($kind, $name, $value) = $word =~ /^(call|limit):(\w+)=(\d+)$/ or die "what is $word?\n";
        ($kind eq 'call' ? \%call : \%limit)->{$name} = $value + 0;
    }
    open($control, '+<&=', $control_number) or die "no socket: $!\n";
    open($script, '+<&=', $script_number) or die "no file in memory: $!\n";
    fcntl($_, $F_SETFD, 1) or die "a descriptor would be inherited: $!\n" for $control, $script;
    open(STDIN, '+<', '/dev/null') and open(STDOUT, '+<', '/dev/null') or die "no /dev/null: $!\n";
    for my $number (keys %limit) {
        my $pair = pack('QQ', $limit{$number}, $limit{$number});
        syscall($call{prlimit64}, 0, $number + 0, $pair, 0) == 0 or die "limit $number: $!\n";
    }
    $end = $limit{$RLIMIT_NOFILE} - 1;
    # A descriptor reports ends of processes: a handler could run between looking and waiting, and be missed.
    my $set = pack('Q', 1 << ($SIGCHLD - 1));
    syscall($call{rt_sigprocmask}, $SIG_BLOCK, $set, 0, $SIGNAL_SET_BYTES) == 0 or die "signal mask: $!\n";
    my $number = syscall($call{signalfd4}, -1, $set, $SIGNAL_SET_BYTES, $O_NONBLOCK | $O_CLOEXEC);
    $number >= 0 and open($ends, '<&=', $number) or die "no descriptor of signals: $!\n";
    # From here on nothing is said there: what bubblewrap and we complain about when starting ends here.
    open(STDERR, '+<', '/dev/null') or exit 1;
    # What is run starts with every signal at its default. Perl ignores one, and the parent of this process may have ignored
    # others, even those that the C library keeps for itself and whose state it lets none change: hence the kernel's own call.
    syscall($call{rt_sigaction}, $_, $DEFAULT, 0, $SIGNAL_SET_BYTES) for 1 .. $SIGNALS;
    umask 0022;
    %ENV = (
        PATH => '/run/bin:/usr/local/bin:/usr/bin:/bin',
        PYTHONPATH => '/run/python',
        HOME => '/work',
        PWD  => '/work',
        USER => 'agent',
        LANG => 'C.UTF-8',
        TERM => 'dumb',
        TZ   => 'UTC',
    );
    answer(facts());
    while (1) {
        my $request = receive(unpack('N', receive(4)));
        my ($persistent, $timeout_ms) = unpack('CQ>', $request);
        answer(run(substr($request, 9), $timeout_ms / 1000, $persistent));
    }
}

# Seconds that cannot be set back.
sub now {
    my $time = "\0" x 16;
    syscall($call{clock_gettime}, $CLOCK_MONOTONIC, $time) == 0 or die "no clock: $!\n";
    my ($seconds, $nanoseconds) = unpack('qq', $time);
    return $seconds + $nanoseconds / 1e9;
}

# Exactly so many bytes; when the other side is gone, so is the sandbox.
sub receive {
    my ($count) = @_;
    my $data = '';
    while (length($data) < $count) {
        sysread($control, $data, $count - length($data), length($data)) or exit 0;
    }
    return $data;
}

# One frame.
sub answer {
    my $frame = pack('N/a*', $_[0]);
    my $sent = 0;
    while ($sent < length($frame)) {
        $sent += syswrite($control, $frame, length($frame) - $sent, $sent) || exit 0;
    }
}

# Credentials and namespaces of this process, one `name value` per line.
sub facts {
    open(my $status, '<', '/proc/self/status') or die "no /proc: $!\n";
    my @found;
    while (my $line = <$status>) {
        $line =~ s/\s+$//;
        my ($name, $value) = split /:\t/, $line, 2;
        push @found, "$name $value" if $WANTED{$name};
    }
    push @found, map { "ns:$_ " . readlink("/proc/self/ns/$_") } qw(cgroup ipc mnt net pid user uts);
    return join("\n", @found, "pid $$");
}

# One output pipe: the beginning and the end are kept, everything is counted. A command may open its own pipe and take away what
# was there a moment ago, so reading never waits.
sub stream {
    pipe(my $in, my $out) or die "no pipe: $!\n";
    fcntl($in, $F_SETFL, $O_NONBLOCK) or die "a pipe would wait: $!\n";
    return begin({ in => $in, out => $out });
}

# From now on a stream is the output of another command.
sub begin {
    my ($stream) = @_;
    @$stream{qw(size head tail room)} = (0, '', '', int($keep / 2));
    return $stream;
}

# Reads once; returns the number of bytes, 0 at the end, nothing when there is nothing to read yet.
sub take {
    my ($stream) = @_;
    my $count = sysread($stream->{in}, my $chunk, $CHUNK);
    return $count if not $count;
    $stream->{size} += length $chunk;
    my $fits = substr($chunk, 0, $stream->{room}, '');
    $stream->{head} .= $fits;
    $stream->{room} -= length $fits;
    if (length $chunk) {
        my $most = $keep - int($keep / 2);
        $stream->{tail} .= $chunk;
        substr($stream->{tail}, 0, -$most, '') if length($stream->{tail}) > $most;
    }
    return $count;
}

# Reads what is there without waiting, at most so often; returns all that was kept.
sub rest {
    my ($stream, $rounds) = @_;
    1 while $rounds-- and take($stream);
    return $stream->{head} . $stream->{tail};
}

# In the child: become bash. What goes wrong is said where the command would have spoken.
sub become {
    my ($command, $shell) = @_;
    my $none = pack('Q', 0);
    syscall($call{setsid});
    syscall($call{rt_sigprocmask}, $SIG_SETMASK, $none, 0, $SIGNAL_SET_BYTES);
    open(STDOUT, '>&', $shell->{out}{out});
    open(STDERR, '>&', $shell->{err}{out});
    my @words = ('bash', '-c', $command);
    if ($shell->{ask}) {
        # It inherits this copy, which is not marked to be closed.
        open(STDIN, '<&', $shell->{given});
        fcntl($shell->{tell}, $F_DUPFD, $end) and exec { '/bin/bash' } 'bash', '-s';
    } elsif (length($command) > $INLINE_BYTES) {
        my $written = 0;
        while ($written < length($command)) {
            $written += syswrite($script, $command, length($command) - $written, $written) || last;
        }
        sysseek($script, 0, 0);
        # bash inherits it.
        if ($written == length($command) and fcntl($script, $F_SETFD, 0)) {
            exec { '/bin/bash' } 'bash', '/proc/self/fd/' . fileno($script);
        }
    } else {
        exec { '/bin/bash' } @words;
    }
    syswrite(STDERR, "bash could not be started: $!\n");
    syscall($call{exit_group}, $NOT_RUN);
}

# A bash with its output: of one command, or one that persists, which reads its commands from a pipe. Of the latter a second pipe
# tells when a command has ended, by a random word and with its exit code. What commands print is not read there, and while one
# runs both pipes are closed to all that it starts; only the shell itself holds them. Returns nothing when it cannot be started.
sub start {
    my ($command, $persistent) = @_;
    my $shell = { out => stream(), err => stream(), pending => '' };
    if ($persistent) {
        pipe($shell->{given}, $shell->{ask}) && pipe($shell->{told}, $shell->{tell}) or die "no pipe: $!\n";
        fcntl($_, $F_SETFL, $O_NONBLOCK) or die "a pipe would wait: $!\n" for @$shell{qw(ask told)};
    }
    $shell->{pid} = fork;
    return if not defined $shell->{pid};
    become($command, $shell) if $shell->{pid} == 0;
    close $_ for $shell->{out}{out}, $shell->{err}{out}, grep { $_ } delete @$shell{qw(given tell)};
    return $shell;
}

# Has the persistent shell run a command.
sub ask {
    my ($shell, $command) = @_;
    begin($shell->{$_}) for qw(out err);
    open(my $random, '<', '/dev/urandom') or die "no random numbers: $!\n";
    sysread($random, my $bytes, 16) == 16 or die "no random numbers: $!\n";
    @$shell{qw(word heard)} = (unpack('H*', $bytes), '');
    $command =~ s/'/'\\''/g;
    # What `set -x` says of the second line is not the command's; what `set -v` says of it is removed by `complaints`.
    $shell->{last} = "{ \\builtin printf '\\n%s %s\\n' $shell->{word} \"\$?\" >&$end; } 2> /dev/null\n";
    $shell->{pending} = "\\eval '$command' < /dev/null $end>&-\n$shell->{last}";
}

# What is kept of stderr, as `rest` returns it, without the line that is not the command's.
sub complaints {
    my ($shell, $rounds) = @_;
    my $kept = rest($shell->{err}, $rounds);
    my $at = $shell->{last} ? index($kept, $shell->{last}) : -1;
    return $kept if $at < 0;
    substr($kept, $at, length $shell->{last}, '');
    $shell->{err}{size} -= length $shell->{last};
    return $kept;
}

# The exit code of the command if the shell has told its end; nothing before, -1 when it can tell nothing any more.
sub hear {
    my ($shell) = @_;
    my $count = sysread($shell->{told}, my $chunk, $CHUNK);
    return if not defined $count;
    return -1 if not $count;
    my @lines = split /\n/, $shell->{heard} . $chunk, -1;
    # Whatever else is written there is not from the shell.
    $shell->{heard} = substr(pop(@lines), -100);
    for my $line (@lines) {
        return $1 < 255 ? $1 + 0 : 255 if $line =~ /^\Q$shell->{word}\E (\d{1,5})$/;
    }
    return;
}

# Collects output until the shell ends, or tells that a command has, or the time is up; returns the exit code, or nothing when it
# is. Whatever else ends meanwhile was left to this process by its parent: it is reaped at once, because until then it counts as
# one of the processes that the sandbox may have.
sub watch {
    my ($shell, $deadline) = @_;
    my %open = map { fileno($_->{in}) => $_ } @$shell{qw(out err)};
    my $ended = fileno($ends);
    my ($ask, $told) = map { $_ ? fileno($_) : -1 } @$shell{qw(ask told)};
    while (1) {
        # Checked in every round: a flood of output must not hold the clock.
        my $left = $deadline - now();
        return if $left <= 0;
        my ($ready, $takes) = ('', '');
        vec($ready, $_, 1) = 1 for keys %open, $ended, $control_number, $told < 0 ? () : $told;
        vec($takes, $ask, 1) = 1 if length $shell->{pending};
        next if select($ready, $takes, undef, $left < 3600 ? $left : 3600) <= 0;
        if (length $shell->{pending} and vec($takes, $ask, 1)) {
            my $taken = syswrite($shell->{ask}, $shell->{pending}, $CHUNK);
            # It has ended, or no longer reads.
            $taken = length $shell->{pending} if not defined $taken and $! != $EAGAIN;
            substr($shell->{pending}, 0, $taken // 0, '');
        }
        if (vec($ready, $ended, 1)) {
            # First read, then looked: an end after the last look is reported again.
            sysread($ends, my $told, $CHUNK);
            # Nor may a flood of ends hold the clock.
            while (now() < $deadline and (my $pid = waitpid(-1, $WNOHANG)) > 0) {
                next if $pid != $shell->{pid};
                $shell->{pid} = 0;
                return $? & 127 ? 128 + ($? & 127) : $? >> 8;
            }
        }
        # Nothing is sent during a command: the other side is gone.
        exit 0 if vec($ready, $control_number, 1);
        for my $number (keys %open) {
            next if not vec($ready, $number, 1);
            my $count = take($open{$number});
            delete $open{$number} if defined $count and $count == 0;
        }
        if ($told >= 0 and vec($ready, $told, 1) and defined(my $code = hear($shell))) {
            return $code if $code >= 0;
            $told = -1;
        }
    }
}

# Kills and reaps everything else in this pid namespace, and empties what it could have kept.
sub bury {
    kill $SIGKILL, -1;
    1 while waitpid(-1, 0) > 0;
    sysseek($script, 0, 0);
    truncate($script, 0);
}

# Runs one command; returns the reply.
sub run {
    my ($command, $timeout_s, $persistent) = @_;
    my $deadline = now() + $timeout_s;
    if ($kept and not $persistent) {
        bury();
        undef $kept;
    }
    kill $SIGCONT, -1 if $kept;
    my $shell = $kept || start($command, $persistent);
    undef $kept;
    if (not $shell) {
        my $problem = "bash could not be started: $!\n";
        return pack('CnQ>Q>', $persistent ? $HAS_ENDED : 0, $NOT_RUN, 0, length $problem) . pack('N/a*', '') . $problem;
    }
    ask($shell, $command) if $persistent;
    my $code = watch($shell, $deadline);
    $kept = $shell if $persistent and $shell->{pid} and defined $code;
    if ($kept) {
        kill $SIGSTOP, -1;
    } else {
        bury();
    }
    my $rounds = $kept ? $FROZEN_ROUNDS : -1;
    my ($said, $complained) = (rest($shell->{out}, $rounds), complaints($shell, $rounds));
    my $flags = (defined $code ? 0 : $WAS_LATE) | ($persistent && !$kept ? $HAS_ENDED : 0);
    my $head = pack('CnQ>Q>', $flags, $code // $TIMED_OUT, map { $_->{size} } @$shell{qw(out err)});
    return $head . pack('N/a*', $said) . $complained;
}
