// brpc's timer thread as a program of `lab timers --brpc` (docs/lab-drivers.md): all three kinds of work.
//
// Build it beside a checkout of https://github.com/apache/brpc (Apache License 2.0). On Debian 12 that takes
// cmake, g++, libgflags-dev, libleveldb-dev, libprotobuf-dev, libprotoc-dev, libssl-dev, protobuf-compiler
// and zlib1g-dev; and ten minutes, as no smaller library has the timer thread in it:
//
//   cmake -S brpc -B brpc/build -DCMAKE_BUILD_TYPE=Release -DWITH_DEBUG_SYMBOLS=OFF -DBUILD_BRPC_TOOLS=OFF
//   cmake --build brpc/build --target brpc-static
//   flags="-O2 -std=c++17 -DNDEBUG -DBTHREAD_USE_FAST_PTHREAD_MUTEX -I brpc/build/output/include"
//   libraries="brpc/build/output/lib/libbrpc.a -lprotobuf -lgflags -lssl -lcrypto -lpthread"
//   g++ $flags lab/drivers/brpc_timers.cpp $libraries -o brpc_timers
// The library is built with that definition of the mutex too: a TimerThread has another size without it.

#include <bthread/timer_thread.h>
#include <butil/time.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using TaskId = bthread::TimerThread::TaskId;
using Clock = std::chrono::steady_clock;
using Numbers = std::vector<std::pair<const char*, double>>;

constexpr int64_t DEADLINE_US = 500000;
constexpr int CALLS_PER_PASS = 64;                 // of `pairs`
constexpr uint64_t WARM_UP = 10000, LOOK = 50000;  // of `held`
constexpr int CALLS_AT_ONCE = 20, ANSWERED_AFTER = 5, UNANSWERED_SHARE = 200;  // of `calls`
constexpr std::chrono::milliseconds PASS{1}, AFTERMATH{700};

// Ends all threads at once, since others may be in the middle of their work.
[[noreturn]] void fail(const char* why) {
    fprintf(stderr, "%s\n", why);
    _exit(1);
}

int64_t deadline_us() { return butil::gettimeofday_us() + DEADLINE_US; }  // by the timer thread's clock

struct Timers : bthread::TimerThread {
    Timers() { if (start(nullptr) != 0) fail("the timer thread does not start"); }
    TaskId arm(int64_t when_us, void (*then)(void*) = [](void*) {}) {
        void* argument = reinterpret_cast<void*>(when_us);
        const TaskId task = schedule(then, argument, butil::microseconds_to_timespec(when_us));
        if (task == INVALID_TASK_ID) fail("a timer could not be armed");
        return task;
    }
    bool cancel(TaskId task) { return unschedule(task) == 0; }
};

double resident_mb() {
    long size = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> size >> resident;
    return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

// A case as the lab reads it.
std::string case_json(const std::string& name, const Numbers& numbers) {
    std::string text;
    for (const auto& [what, value] : numbers)
        text += (text.empty() ? "\"" : ", \"") + std::string(what) + "\": " + std::to_string(value);
    return "\"" + name + "\": {" + text + "}";
}

// A thread that cancels its own timers, oldest first. A timer that has fired is no pair.
uint64_t cancel_own(Timers& timers, size_t window, const std::atomic<bool>& is_over) {
    std::vector<TaskId> armed(window);
    for (TaskId& task : armed) task = timers.arm(deadline_us());
    uint64_t done = 0;
    for (size_t index = 0; !is_over.load(std::memory_order_relaxed);) {
        const int64_t when_us = deadline_us();
        for (int call = 0; call < CALLS_PER_PASS; ++call) {
            done += timers.cancel(armed[index]);
            armed[index] = timers.arm(when_us);
            if (++index == window) index = 0;
        }
    }
    return done;
}

// Timers that go from one thread of a ring to the next together. A flag passes them on, and back when they
// are cancelled.
struct alignas(64) Batch {
    std::vector<TaskId> tasks;
    std::atomic<bool> is_armed{false};
};
// A window is two batches, so that one can be armed while the other is cancelled, or a single one.
using Lane = std::vector<Batch>;

// A thread that cancels the timers of the thread before it.
uint64_t cancel_incoming(Timers& timers, Lane& onward, Lane& incoming, const std::atomic<bool>& is_over) {
    uint64_t done = 0;
    for (size_t armed = 0, cancelled = 0; !is_over.load(std::memory_order_relaxed);) {
        Batch& arms = onward[armed % onward.size()];
        Batch& cancels = incoming[cancelled % incoming.size()];
        const bool may_arm = !arms.is_armed.load(std::memory_order_acquire);
        const bool may_cancel = cancels.is_armed.load(std::memory_order_acquire);
        if (!may_arm && !may_cancel) std::this_thread::yield();
        if (may_arm) {
            const int64_t when_us = deadline_us();
            for (TaskId& task : arms.tasks) task = timers.arm(when_us);
            arms.is_armed.store(true, std::memory_order_release);
            ++armed;
        }
        if (may_cancel) {
            for (TaskId task : cancels.tasks) done += timers.cancel(task);
            cancels.is_armed.store(false, std::memory_order_release);
            ++cancelled;
        }
    }
    return done;
}

std::string pairs(const std::string& by, size_t window, size_t threads, int for_ms) {
    Timers timers;
    std::vector<Lane> lanes;
    for (size_t thread = 0; thread < threads; ++thread)
        for (Batch& batch : lanes.emplace_back(std::min<size_t>(window, 2)))
            batch.tasks.resize(window / lanes.back().size());
    pthread_barrier_t begin;
    pthread_barrier_init(&begin, nullptr, threads + 1);
    std::atomic<bool> is_over{false};
    std::atomic<uint64_t> done{0};
    std::vector<std::thread> started;
    for (size_t thread = 0; thread < threads; ++thread)
        started.emplace_back([&, thread] {
            pthread_barrier_wait(&begin);
            pthread_barrier_wait(&begin);
            const size_t before = (thread + threads - 1) % threads;
            done += by == "owner" ? cancel_own(timers, window, is_over)
                                  : cancel_incoming(timers, lanes[thread], lanes[before], is_over);
        });
    pthread_barrier_wait(&begin);
    const clock_t cpu_before = clock();
    const auto began = Clock::now();
    pthread_barrier_wait(&begin);
    std::this_thread::sleep_for(std::chrono::milliseconds(for_ms));
    is_over = true;
    for (std::thread& thread : started) thread.join();
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    const double cpu_ns = (clock() - cpu_before) * 1e9 / CLOCKS_PER_SEC;
    return case_json(by + "-w" + std::to_string(window) + "-" + std::to_string(threads),
                {{"pairs_per_s", done / seconds}, {"cpu_ns_per_pair", cpu_ns / std::max<uint64_t>(done, 1)}});
}

// Recorded by the timer thread when it fires a timer, which never happens in the first half second.
struct {
    // Its sleeps, including those for a mutex, which are rare with one client; and those after which a timer
    // fired.
    std::atomic<long> sleeps{0}, firing_sleeps{0};
    std::vector<int64_t> late_us;  // read when the thread has ended
} fired;

void record_fired(void* deadline_us) {
    fired.late_us.push_back(butil::gettimeofday_us() - reinterpret_cast<intptr_t>(deadline_us));
    rusage used{};
    getrusage(RUSAGE_THREAD, &used);
    if (fired.sleeps.exchange(used.ru_nvcsw) != used.ru_nvcsw) ++fired.firing_sleeps;
}

std::string calls(int for_ms) {
    Timers timers;
    std::vector<TaskId> under_way[ANSWERED_AFTER];
    const auto answer = [&](std::vector<TaskId>& batch) {
        for (TaskId task : batch)
            if (!timers.cancel(task)) fail("a deadline fired although its call was answered");
        batch.clear();
    };
    double mb_before = resident_mb(), gained_mb = 0;
    long sleeps_before_end = 0;
    uint64_t calls = 0;
    auto next = Clock::now();
    for (int pass = 0; pass < for_ms; ++pass) {
        std::vector<TaskId>& batch = under_way[pass % ANSWERED_AFTER];
        answer(batch);
        const int64_t when_us = deadline_us();
        for (int call = 0; call < CALLS_AT_ONCE; ++call) {
            const TaskId task = timers.arm(when_us, record_fired);
            if (++calls % UNANSWERED_SHARE != 0) batch.push_back(task);
        }
        if (pass % 64 == 0) gained_mb = std::max(gained_mb, resident_mb() - mb_before);
        if (pass == for_ms / 4 * 3) sleeps_before_end = fired.sleeps;
        std::this_thread::sleep_until(next += PASS);
    }
    const long firing_sleeps = fired.firing_sleeps, sleeps = fired.sleeps;
    std::for_each(std::begin(under_way), std::end(under_way), answer);
    std::this_thread::sleep_for(AFTERMATH);
    timers.stop_and_join();
    std::vector<int64_t>& all = fired.late_us;
    if (all.empty() || all.size() != calls / UNANSWERED_SHARE) fail("not every unanswered call failed");
    std::sort(all.begin(), all.end());
    const auto at = [&](double share) { return all[static_cast<size_t>((all.size() - 1) * share)]; };
    return case_json("calls", {{"calls", calls}, {"fired", all.size()}, {"gained_mb", gained_mb},
                          {"wakes_per_s", sleeps * 1e3 / for_ms},
                          {"wakes_per_s_at_the_end", (sleeps - sleeps_before_end) * 4e3 / for_ms},
                          {"dead_wakes_percent", 100.0 * (sleeps - firing_sleeps) / std::max(sleeps, 1L)},
                          {"late_min_us", at(0)}, {"late_p50_us", at(0.5)}, {"late_p99.9_us", at(0.999)}});
}

std::string held(uint64_t wanted) {
    Timers timers;
    double before = 0, most = 0;
    for (uint64_t call = 0; call < wanted; ++call) {
        if (call == WARM_UP) before = resident_mb();
        if (!timers.cancel(timers.arm(deadline_us()))) fail("a timer fired that was to be cancelled");
        if ((call + 1) % LOOK == 0 || call + 1 == wanted) most = std::max(most, resident_mb() - before);
    }
    return case_json("held", {{"cancelled", wanted}, {"held_mb", most}});
}

}  // namespace

int main(int argc, char** argv) {
    std::string work;
    int for_ms = 40, status = 0;
    uint64_t wanted = 1000000;
    for (int word = 1; word + 1 < argc; word += 2) {
        const std::string name = argv[word], value = argv[word + 1];
        if (name == "--work") work = value;
        if (name == "--for-ms") for_ms = std::stoi(value);
        if (name == "--timers") wanted = std::stoull(value);
    }
    if (work == "held") return printf("{%s}\n", held(wanted).c_str()) < 0;
    if (work == "calls") return printf("{%s}\n", calls(for_ms).c_str()) < 0;
    if (work != "pairs") fail("the work is pairs, calls or held");
    const char* sep = "{";
    for (const std::string by : {"owner", "other"})
        for (size_t window : {1, 64})
            for (size_t threads : {1, 2, 4, 8, 50}) {
                if (by == "other" && threads == 1) continue;
                // In a process of its own: a TimerThread that stops does not return its tasks to the pool,
                // and after some cases allocating new ones takes most of the time.
                if (fork() == 0) return printf("%s%s", sep, pairs(by, window, threads, for_ms).c_str()) < 0;
                if (wait(&status) < 0 || status != 0) fail("a case failed");
                sep = ", ";
            }
    puts("}");
}
