# The first process inside a sandbox: runs one fresh `bash -c` per request, and leaves nothing alive after it.
#
# This file runs alone, as process 1 of a pid namespace, with the system's Perl and none of its modules: that starts in a fifth
# of the processor time that Python takes (1.2 against 5.6 ms), which counts where a life is short. Nothing inside can signal
# process 1, and because its interpreter's file may be executed but not read, the kernel lets no process inside look into its
# memory or descriptors.
#
# Arguments: the socket's descriptor, that of a file in memory for long commands, bytes kept per stream, then call:NAME=NUMBER for the system calls that Perl does not offer,
# and limit:NUMBER=VALUE for the resource limits.
#
# Protocol on a stream socket, all numbers big-endian:
#     hello:    4-byte length, then the facts that the other side checks (credentials, namespaces)
#     request:  4-byte length, 8-byte timeout in milliseconds, the command's bytes
#     reply:    4-byte length, 1 byte timed out, 2 bytes exit code, 8 bytes stdout size, 8 bytes stderr size,
#               4-byte length of what is kept of stdout, that, what is kept of stderr

use strict;

my $CHUNK = 65_536;
# Longest command handed over as an argument; the kernel's limit is 128 KiB. Longer ones go through the file in memory, which the
# broker made: nothing inside may make one.
my $INLINE_BYTES = 100_000;
my ($TIMED_OUT, $NOT_RUN, $SIGKILL) = (124, 126, 9);
my ($F_SETFD, $F_SETFL, $O_NONBLOCK, $O_CLOEXEC, $CLOCK_MONOTONIC, $WNOHANG) = (2, 4, 2048, 524_288, 1, 1);
my ($SIGCHLD, $SIG_BLOCK, $SIG_SETMASK) = (17, 0, 2);
# A kernel's `struct sigaction` of zeros: the default, on every 64-bit machine; and the number of signals.
my ($DEFAULT, $SIGNAL_SET_BYTES, $SIGNALS) = ("\0" x 32, 8, 64);
my %WANTED = map { $_ => 1 } qw(Uid CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Groups);

my (%call, $control, $control_number, $script, $keep, $ends);

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
        answer(run(substr($request, 8), unpack('Q>', $request) / 1000));
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
    return { in => $in, out => $out, size => 0, head => '', tail => '', room => int($keep / 2) };
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

# In the child: become bash. What goes wrong is said where the command would have spoken.
sub become {
    my ($command, $out, $err) = @_;
    my $none = pack('Q', 0);
    syscall($call{setsid});
    syscall($call{rt_sigprocmask}, $SIG_SETMASK, $none, 0, $SIGNAL_SET_BYTES);
    open(STDOUT, '>&', $out->{out});
    open(STDERR, '>&', $err->{out});
    my @words = ('bash', '-c', $command);
    if (length($command) > $INLINE_BYTES) {
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

# Collects output until the shell ends or the time is up; returns the shell's exit code, or nothing when the time is up.
# Whatever else ends meanwhile was left to this process by its parent: it is reaped at once, because until then it counts as one
# of the processes that the sandbox may have.
sub watch {
    my ($shell, $deadline, @streams) = @_;
    my %open = map { fileno($_->{in}) => $_ } @streams;
    my $ended = fileno($ends);
    while (1) {
        # Checked in every round: a flood of output must not hold the clock.
        my $left = $deadline - now();
        return if $left <= 0;
        my $ready = '';
        vec($ready, $_, 1) = 1 for keys %open, $ended, $control_number;
        next if select($ready, undef, undef, $left < 3600 ? $left : 3600) <= 0;
        if (vec($ready, $ended, 1)) {
            # First read, then looked: an end after the last look is reported again.
            sysread($ends, my $told, $CHUNK);
            # Nor may a flood of ends hold the clock.
            while (now() < $deadline and (my $pid = waitpid(-1, $WNOHANG)) > 0) {
                return $? & 127 ? 128 + ($? & 127) : $? >> 8 if $pid == $shell;
            }
        }
        # Nothing is sent during a command: the other side is gone.
        exit 0 if vec($ready, $control_number, 1);
        for my $number (keys %open) {
            next if not vec($ready, $number, 1);
            my $count = take($open{$number});
            delete $open{$number} if defined $count and $count == 0;
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
    my ($command, $timeout_s) = @_;
    my ($out, $err) = (stream(), stream());
    my $deadline = now() + $timeout_s;
    my ($code, $problem) = ($NOT_RUN, '');
    my $shell = fork;
    if (not defined $shell) {
        $problem = "bash could not be started: $!\n";
    } else {
        become($command, $out, $err) if $shell == 0;
        close $_->{out} for $out, $err;
        $code = watch($shell, $deadline, $out, $err);
        bury();
        for my $stream ($out, $err) {
            1 while take($stream);
        }
    }
    my $timed_out = defined $code ? 0 : 1;
    my ($said, $complained) = map { $_->{head} . $_->{tail} } $out, $err;
    my $head = pack('CnQ>Q>', $timed_out, $code // $TIMED_OUT, $out->{size}, $err->{size} + length $problem);
    return $head . pack('N/a*', $said) . $complained . $problem;
}
