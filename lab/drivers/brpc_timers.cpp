// brpc's timer thread as a program of `lab timers --brpc` (docs/lab-drivers.md): `pairs` by the owner, and `held`.
//
// Build it beside a checkout of https://github.com/apache/brpc (Apache License 2.0) that was built with its
// cmake files into build/:
//
//   g++ -O2 -std=c++17 -I brpc/build/output/include lab/drivers/brpc_timers.cpp \
//       brpc/build/output/lib/libbrpc.a -lgflags -lprotobuf -lleveldb -lssl -lcrypto -ldl -lz -lpthread -o brpc_timers

#include <bthread/timer_thread.h>
#include <butil/time.h>

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t DEADLINE_US = 500000;
constexpr int CALLS_PER_TURN = 64;
constexpr uint64_t WARM_UP = 10000;

void nothing(void*) {}

timespec deadline() { return butil::microseconds_to_timespec(butil::gettimeofday_us() + DEADLINE_US); }

double cpu_seconds() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec / 1e6; };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double resident_mb() {
    long size = 0, resident = 0;
    if (FILE* statm = fopen("/proc/self/statm", "r")) {
        if (fscanf(statm, "%ld %ld", &size, &resident) != 2) resident = 0;
        fclose(statm);
    }
    return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

void own(bthread::TimerThread& timers, int window, const std::atomic<bool>& is_over, uint64_t* pairs) {
    using TaskId = bthread::TimerThread::TaskId;
    std::vector<TaskId> armed(window, bthread::TimerThread::INVALID_TASK_ID);
    uint64_t done = 0;
    for (int place = 0; !is_over.load(std::memory_order_relaxed);) {
        const timespec when = deadline();
        for (int call = 0; call < CALLS_PER_TURN; ++call) {
            TaskId& task = armed[place];
            if (task != bthread::TimerThread::INVALID_TASK_ID) done += timers.unschedule(task) == 0;
            task = timers.schedule(nothing, nullptr, when);
            if (++place == window) place = 0;
        }
    }
    for (TaskId task : armed) timers.unschedule(task);
    *pairs = done;
}

std::string pairs(int window, int threads, int for_ms) {
    bthread::TimerThread timers;
    if (timers.start(nullptr) != 0) exit(1);
    std::atomic<bool> is_over{false};
    std::vector<uint64_t> done(threads);
    std::vector<std::thread> started;
    const double cpu_before = cpu_seconds();
    const int64_t began = butil::cpuwide_time_us();
    for (int thread = 0; thread < threads; ++thread)
        started.emplace_back([&, thread] { own(timers, window, is_over, &done[thread]); });
    usleep(for_ms * 1000);
    is_over = true;
    for (std::thread& thread : started) thread.join();
    const double seconds = (butil::cpuwide_time_us() - began) / 1e6;
    const double cpu = cpu_seconds() - cpu_before;
    uint64_t all = 0;
    for (uint64_t count : done) all += count;
    timers.stop_and_join();
    char line[200];
    snprintf(line, sizeof line, "\"owner-w%d-%d\": {\"pairs_per_s\": %.0f, \"cpu_ns_per_pair\": %.3f}", window,
             threads, all / seconds, cpu * 1e9 / (all ? all : 1));
    return line;
}

std::string held(uint64_t wanted) {
    bthread::TimerThread timers;
    if (timers.start(nullptr) != 0) exit(1);
    double before = 0, most = 0;
    for (uint64_t call = 0; call < wanted; ++call) {
        if (call == WARM_UP) before = resident_mb();
        timers.unschedule(timers.schedule(nothing, nullptr, deadline()));
        if (call > WARM_UP && call % 50000 == 0) most = std::max(most, resident_mb() - before);
    }
    char line[120];
    snprintf(line, sizeof line, "\"held\": {\"cancelled\": %llu, \"held_mb\": %.3f}",
             static_cast<unsigned long long>(wanted), most);
    timers.stop_and_join();
    return line;
}

}  // namespace

int main(int argc, char** argv) {
    std::string work;
    int for_ms = 40;
    uint64_t wanted = 1000000;
    for (int word = 1; word + 1 < argc; word += 2) {
        if (!strcmp(argv[word], "--work")) work = argv[word + 1];
        if (!strcmp(argv[word], "--for-ms")) for_ms = atoi(argv[word + 1]);
        if (!strcmp(argv[word], "--timers")) wanted = strtoull(argv[word + 1], nullptr, 10);
    }
    std::string line;
    if (work == "pairs") {
        for (int window : {1, 64})
            for (int threads : {1, 2, 4, 8, 50}) line += (line.empty() ? "" : ", ") + pairs(window, threads, for_ms);
    } else if (work == "held") {
        line = held(wanted);
    } else {
        fprintf(stderr, "%s is not measured here\n", work.c_str());
        return 1;
    }
    printf("{%s}\n", line.c_str());
}
