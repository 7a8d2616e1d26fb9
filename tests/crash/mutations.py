"""What the promises rest on, broken one at a time: a text of the source, what is put in its place, and the test that
notices.

    python3 tests/crash/mutations.py        writes MUTATIONS.md

test_mutations.py does the breaking, in a copy of the tree.
"""

import collections
import os

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "MUTATIONS.md")

# `what` is broken in `file` of mxqlib by putting `new` in the place of `old`; `tests` must fail then.
Mutation = collections.namedtuple("Mutation", "what file old new tests")

REAP, COLLECT, ADOPT = "crash/test_reap.py::", "crash/test_collect.py::", "crash/test_adopt.py::"
REAPER_AT_SPOOL = REAP + "test_kill_of_the_reaper_at_each_spool_call"
REAPER_AT_CALL = REAP + "test_kill_of_the_reaper_at_each_call"
MADE_GOOD = "crash/test_run.py::test_kill_of_the_reaper_at_each_call_is_made_good_by_mxq_run_that_waits"
ORDER, POWER = REAP + "test_order_of_the_calls", REAP + "test_power_loss"
CLAIM = ADOPT + "test_a_claim_is_given_back_only_when_it_cannot_run"

MUTATIONS = (
    # ---- durability ----
    Mutation("a record is renamed before its data is on the disk", "durable.py",
             "            write_all(fd, data)\n            sync(fd)\n", "            write_all(fd, data)\n", ORDER),
    Mutation("the directory of a record is not synced", "durable.py",
             "        raise\n    sync_directory(folder)\n", "        raise\n", ORDER),
    Mutation("a record is written under its own name", "durable.py",
             'temporary = os.path.join(folder, ".%s.%d" % (name, os.getpid()))', "temporary = path", POWER),
    Mutation("the outcome is renamed before its data is on the disk", "durable.py",
             "        try:\n            sync(self.fd)\n        except OSError:",
             "        try:\n            pass\n        except OSError:", ORDER),
    Mutation("the directory of the outcome is not synced", "durable.py",
             "        self._close()\n        sync_directory(os.path.dirname(target))\n", "        self._close()\n",
             ORDER),
    Mutation("the outcome is published with what is left of the room", "durable.py",
             "            os.ftruncate(self.fd, len(data))\n", "", REAPER_AT_SPOOL),
    Mutation("the parent of a new directory is not synced", "durable.py",
             "    sync_directory(parent)\n", "", REAP + "test_power_loss_at_the_first_use_of_a_base_directory"),
    Mutation("the directory is not synced after a move to corrupt/", "durable.py",
             "    os.rename(source, target)\n    sync_directory(os.path.dirname(target))\n",
             "    os.rename(source, target)\n", COLLECT + "test_what_is_put_aside_is_durable_in_both_directories"),
    Mutation("the directory that a file was moved out of is not synced", "durable.py",
             "        sync_directory(os.path.dirname(source))\n", "        pass\n",
             COLLECT + "test_what_is_put_aside_is_durable_in_both_directories"),
    Mutation("the reason of a damaged file is not synced", "spool.py",
             "            durable.sync(fd)\n", "            pass\n",
             COLLECT + "test_what_is_put_aside_is_durable_in_both_directories"),
    Mutation("a removal is not synced", "durable.py",
             "    os.unlink(path)\n    sync_directory(os.path.dirname(path))\n", "    os.unlink(path)\n",
             "crash/test_ctl.py::test_resumed_is_said_when_it_is_durable"),
    Mutation("after a failed fsync the same file is synced again", "durable.py",
             "            sync(self.fd)\n        except OSError:\n            self.drop()\n            raise\n",
             "            sync(self.fd)\n        except OSError:\n            raise\n",
             "unit/test_durable.py::test_after_a_failed_fsync_a_fresh_file_is_written"),
    Mutation("no room is allocated", "durable.py", "            os.posix_fallocate(self.fd, 0, size_b)\n",
             "            pass\n", "cli/test_reap_full.py::test_a_disk_that_fills_while_the_job_runs"
             "_takes_the_outcome_all_the_same"),
    Mutation("the queue commits without a sync of its log", "jobqueue/__init__.py", '"FULL" if wanted == "wal"',
             '"NORMAL" if wanted == "wal"', COLLECT + "test_no_file_goes_before_the_commit_is_durable"),
    Mutation("what is appended to a log is not synced", "delivery/file.py",
             "                durable.sync(fd)\n", "",
             "crash/test_deliver.py::test_nothing_is_told_before_the_outcome_is_durable_nor_marked_before_it_is_told"),
    # ---- the gate and the order of a start ----
    Mutation("MAIN runs though its gate closed", "child.py",
             "        if os.read(gate, 1):", "        if os.read(gate, 1) or True:", REAPER_AT_SPOOL),
    Mutation("MAIN holds the other end of its own gate", "attempt.py",
             "held = [gate, reservation.fd]", "held = [reservation.fd]", REAPER_AT_SPOOL),
    Mutation("the gate opens before the record is durable", "attempt.py",
             "    try:\n        attempt.spool.put(attempt.entry)\n",
             '    try:\n        os.write(gate, b"x")\n        attempt.spool.put(attempt.entry)\n', ORDER),
    Mutation("the reaper lets go of the claim's lock before its record is there", "attempt.py",
             "    try:\n        attempt.spool.put(attempt.entry)\n",
             "    try:\n        if attempt.lock is not None:\n            attempt.lock.let_go()\n"
             "            attempt.lock = None\n        attempt.spool.put(attempt.entry)\n", CLAIM),
    Mutation("the gate opens though the claim's lock file could not be removed", "attempt.py",
             "            attempt.lock.drop() ", "            attempt.lock.let_go() ",
             "crash/test_run.py::test_a_lock_file_that_cannot_be_removed"),
    Mutation("MAIN leaves the record of a run whose gate closed", "attempt.py",
             "    attempt.launch.refused = lambda: withdraw(attempt.spool, attempt.entry[\"run\"], me)\n", "", CLAIM),
    # ---- how it ended ----
    Mutation("a child is reaped before it was looked at (no WNOWAIT)", "child.py",
             "os.WCONTINUED | os.WNOHANG | os.WNOWAIT)", "os.WCONTINUED | os.WNOHANG)",
             "unit/test_child.py::test_a_child_is_seen_before_it_is_reaped_and_its_usage_is_there_after"),
    Mutation("MAIN is reaped before its status was told", "reaper.py",
             "        if change.pid == self.main and not self.is_over:\n            self.main_ended(change.status)\n"
             "        used = child.reap(change.pid)       # from here on the pid may mean another process\n",
             "        used = child.reap(change.pid)\n"
             "        if change.pid == self.main and not self.is_over:\n            self.main_ended(change.status)\n",
             REAPER_AT_CALL),
    Mutation("the status of MAIN is not told to the front", "reaper.py",
             '        self.tell("ended %d %s %r" % (self.status, self.date_end, self.real_s))\n', "", REAPER_AT_SPOOL),
    Mutation("what Python gives after a stop is taken for a signal", "signals.py",
             "    if info.si_signo not in numbers or (", "    if False and (",
             "unit/test_signals.py::test_a_process_that_is_stopped_while_it_waits_gets_no_signal_that_nobody_sent"),
    Mutation("any child that ends is taken for MAIN", "reaper.py",
             "if change.pid == self.main and not self.is_over:", "if True:",
             "cli/test_reap_leftovers.py::test_the_status_is_that_of_main_and_not_of_the_last_one_reaped"),
    Mutation("the front is no subreaper", "front.py", "        process.become_subreaper()\n", "", REAPER_AT_SPOOL),
    Mutation("why it ended is told after the kill", "reaper.py",
             '        if self.is_to_blame and self.blame(why):\n            self.tell("reason " + why)',
             "        if self.is_to_blame and self.blame(why):\n            pass",
             "cli/test_reap_killed.py::test_a_kill_that_was_told_before_the_reaper_died_stays_the_reason"),
    Mutation("that the command could not be executed is not told to the front", "reaper.py",
             '            if self.blame("exec"):\n                self.tell("reason exec")\n',
             '            self.blame("exec")\n', REAP + "test_kill_of_the_reaper_of_what_cannot_be_executed"),
    Mutation("mxq-run does not believe what a dead reaper had told", "watcher.py",
             '        if "ended" in told.facts:\n', "        if False:\n", MADE_GOOD),
    Mutation("an outcome that cannot be written is given up", "outcome.py",
             "        if _pause(pause_s, note, attempt.entry[\"run\"], trouble):", "        if True:",
             "cli/test_reap_full.py::test_it_says_so_once_and_goes_on_trying"),
    # ---- who is who ----
    Mutation("a reused pid is taken for its process (start time)", "process.py",
             'found if found is not None and found.start == wanted.get("start") else None', "found",
             "unit/test_process.py::test_a_reference_finds_its_process_and_nobody_else"),
    Mutation("a signal is sent to whoever has the pid", "process.py",
             "        if fd is None or not target.same(look(target.pid)):", "        if fd is None:",
             "unit/test_process.py::test_who_got_the_pid_of_another_is_not_signalled"),
    Mutation("a pidfd is held of whoever has the pid", "process.py",
             "    if fd is not None and find(wanted) is None:", "    if False:",
             "cli/test_ctl.py::test_locks_of_the_dead_and_of_reused_pids_are_nobodys"),
    Mutation("a reused pid is taken for the reaper by mxq-adopt", "census.py",
             '    if found.start != reference.get("start"):', "    if False:",
             "unit/test_census.py::test_a_reference_that_differs_in_something"),
    Mutation("the boot id is not compared", "census.py", '    if reference["boot"] != here["boot"]:', "    if False:",
             "unit/test_census.py::test_a_reference_that_differs_in_something"),
    Mutation("the pid namespace is not compared", "census.py", '    if reference.get("pidns") != here["pidns"]:',
             "    if False:", "unit/test_census.py::test_a_reference_that_differs_in_something"),
    Mutation("mxq-ctl signals the pid of an earlier boot", "targets.py",
             '    if reference.get("boot") != here["boot"]:\n        return "it was',
             '    if False:\n        return "it was',
             "cli/test_ctl.py::test_runs_elsewhere_are_refused_with_the_place_and_the_rest_is_done"),
    Mutation("mxq-ctl does not keep the reaper from its next run", "lock.py",
             "            fcntl.flock(fd, fcntl.LOCK_SH)\n", "            pass\n",
             "crash/test_ctl.py::test_a_signal_for_one_run_does_not_meet_the_next"),
    Mutation("a reaper goes on to its next run while it is being signalled", "crew.py",
             "        if not lock.try_exclusive(held):\n            return False\n", "",
             "crash/test_ctl.py::test_a_signal_for_one_run_does_not_meet_the_next"),
    # ---- locks ----
    Mutation("a claim is given back while its reaper is on its way", "adoption.py",
             "            if host == self.here and name and lock.is_held(self.runners, name):\n"
             "                continue            # a claimer, or a reaper on its way\n", "",
             "cli/test_adopt_loaded.py::test_a_lock_that_is_held"),
    Mutation("two processes have one lock", "lock.py",
             "            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))\n", "            pass\n",
             "cli/test_adopt_lost.py::test_one_at_a_time"),
    Mutation("a lock counts whose file was removed", "lock.py",
             "            if os.path.samestat(os.stat(path), os.fstat(fd)):", "            if True:",
             "unit/test_lock.py::test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew"),
    Mutation("files that a living process writes are swept away", "durable.py",
             "    try:\n        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
             "    except OSError:\n        os.close(fd)\n        raise\n", "",
             "cli/test_adopt_loaded.py::test_a_room_that_is_held"),
    Mutation("a transaction takes the write lock late", "jobqueue/__init__.py", '"BEGIN IMMEDIATE"', '"BEGIN"',
             "crash/test_run.py::test_two_at_once_around_each_claim"),
    Mutation("a log is appended to without its lock", "delivery/file.py",
             "                _lock(fd, until, stop)\n", "",
             "unit/test_delivery_file.py::test_a_lock_that_is_held_is_waited_for_and_not_for_ever"),
    # ---- exactly once, at least once ----
    Mutation("an outcome is committed a second time", "jobqueue/outcomes.py",
             "            if before in record.FINAL:\n", "            if False:\n",
             "unit/test_outcomes.py::test_two_outcomes_of_one_run"),
    Mutation("an event is told twice", "jobqueue/__init__.py",
             'NEW_EVENT = ("INSERT INTO event (job, attempt, code, n, date, note) VALUES (?, ?, ?, ?, ?, ?)"\n'
             '             " ON CONFLICT DO NOTHING")',
             'NEW_EVENT = ("INSERT INTO event (job, attempt, code, n, date, note) VALUES (?, ?, ?, ?, ?, ?)")',
             "unit/test_outcomes.py::test_running_first_and_its_outcome_later_are_one_run"),
    Mutation("a job is claimed twice", "jobqueue/jobs.py",
             "WHERE job = ? AND state = 'queued' AND waits = 0\",\n                           (job,)).fetchone()\n"
             "    if row is None:\n        return None\n    run =",
             "WHERE job = ?\",\n                           (job,)).fetchone()\n"
             "    if row is None:\n        return None\n    run =", "unit/test_jobs.py::test_a_job_is_claimed_once"),
    Mutation("a file goes before the commit", "intake.py",
             "        done, contradicting = [], []\n        fresh = self._unknown(files, done)\n",
             "        done, contradicting = [], []\n        fresh = self._unknown(files, done)\n"
             "        for found in files:\n            self._remove(found)\n",
             COLLECT + "test_kill_before_each_commit_and_removal"),
    Mutation("a file that was replaced since is removed", "intake.py",
             "            if not found.is_final and spool.identity(path) != found.identity:", "            if False:",
             "crash/test_collect.py::test_a_file_that_is_replaced_meanwhile_stays"),
    Mutation("the marker of what is owed comes after the commit", "jobqueue/__init__.py",
             "                if self.queue.owes:\n                    outbox.mark(self.queue.path)\n"
             '                self.queue.db.execute("COMMIT")\n',
             '                self.queue.db.execute("COMMIT")\n'
             "                if self.queue.owes:\n                    outbox.mark(self.queue.path)\n",
             "crash/test_deliver.py::test_kill_at_each_change_of_a_file_from_the_spool_to_the_last_delivery"),
    Mutation("what is owed is not written with the event", "jobqueue/__init__.py",
             "            self.pending[NEW_DELIVERY] += [", "            [",
             "cli/test_delivery.py::test_a_real_run_is_told_everywhere_and_in_silence"),
    Mutation("the marker goes while something is owed", "jobqueue/due.py",
             "    if queue.db.execute(\"SELECT 1 FROM delivery WHERE state = 'owed' LIMIT 1\").fetchone() is None:\n",
             "    if True:\n", "unit/test_delivery_due.py::test_the_marker_goes_when_nothing_is_owed_and_no_sooner"),
    Mutation("a mail is tried without being counted", "jobqueue/due.py",
             "    return queue.db.execute(\n        \"UPDATE delivery SET tries = tries + 1, error = 'no",
             "    return True or queue.db.execute(\n        \"UPDATE delivery SET tries = tries + 1, error = 'no",
             "cli/test_delivery.py::test_a_hook_that_ends_its_caller_holds_up_nobody_and_is_parked_in_the_end"),
    Mutation("what a crash left in a log is written again", "delivery/file.py",
             "    there_b, torn_b = overlap(tail, len(tail) == size_b, texts, data)\n", "    there_b, torn_b = 0, 0\n",
             "unit/test_delivery_file.py::test_what_a_crash_left_is_completed_wherever_it_was_cut"),
    # ---- adoption ----
    Mutation("a run is lost though its outcome was in its room", "spool.py",
             '        return entry if entry and entry["state"] == record.ENDED else None\n', "        return None\n",
             "cli/test_adopt_lost.py::test_an_outcome_that_was_written_and_had_no_name_yet"),
    Mutation("a run is lost though its record changed meanwhile", "rollcall.py",
             "            if found.word == ATTACHED or found.is_same():", "            if True:",
             "unit/test_rollcall.py::test_an_outcome_that_comes_while_the_processes_are_looked_at_has_the_last_word"),
    Mutation("a run is lost that a living process has locked", "rollcall.py",
             "        while durable.is_in_use(path):", "        while False:",
             "cli/test_adopt_lost.py::test_a_disk_that_is_full"),
    Mutation("a run is lost without a drain", "watcher.py",
             "    if not serious:\n        return False\n", "    return False\n",
             "cli/test_adopt_lost.py::test_two_lost_runs_are_both_named"),
    # ---- what is believed ----
    Mutation("a record is believed under the name of another run", "record.py",
             '    if run is not None and record["run"] != run:', "    if False:",
             "unit/test_record.py::test_a_record_is_that_of_its_file"),
    Mutation("a record that is cut off is believed", "record.py", '    if data[-1:] != b"\\n":', "    if False:",
             "unit/test_record.py::test_what_is_no_record"),
    Mutation("a record that is no regular file, or of somebody else, is believed", "spool.py",
             "        if found.st_uid != os.geteuid():", "        if False:",
             "unit/test_spool.py::test_a_file_of_somebody_else_is_not_believed"),
    Mutation("what the queue does not give back is removed", "intake.py",
             "            done = self._given_back(done)\n", "",
             "crash/test_fuzz.py::test_an_index_that_leads_to_another_row"),
)


def table():
    """MUTATIONS.md."""
    lines = ["# What the tests notice", "",
             "Each of these was broken, one at a time, in a copy of the tree, and the test beside it failed.",
             "`test_mutations.py` does it again (`make long-check`). Made by `mutations.py`.", "",
             "| broken | where | test that fails |", "|---|---|---|"]
    for each in MUTATIONS:
        file, _, name = each.tests.partition("::")
        lines.append("| %s | `%s` | `%s` in `%s` |" % (each.what, each.file, name, file))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(TABLE, "w", encoding="utf-8") as output:
        output.write(table())
