// A grid of blocks on one CPU thread: blocks one after the other, each thread of a block a fiber.
//
// A fiber runs until it waits: for its block (barrier) or for lanes of its warp (exchange). When all wait or are done,
// those whose companions have come run on. If nobody can, the kernel would hang on a GPU, or read what is undefined:
// the launch fails and says who waits where. So it does when a thread touches memory beyond a buffer (a page without
// access lies behind each), or does what C++ leaves undefined (the kernel is compiled with traps).
//
// With reverse = 1, threads run in the opposite order and blocks in a shuffled one: a missing barrier, or a block that
// counts on those before it, then shows in one of the two.

#include "cuda_on_host.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
extern unsigned char __start_cuda_shared[] __attribute__((weak)), __stop_cuda_shared[] __attribute__((weak));

namespace cuda_on_host {
namespace {

constexpr size_t STACK = 64 * 1024;
constexpr unsigned char POISON = 0xff;  // NaN in every float, -1 in every integer

enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };
struct Copy { void *to; const void *from; int bytes; };
struct Fiber {
    jmp_buf context;
    ucontext_t first;
    bool started = false;
    State state;
    uint3 index;
    int line;
    unsigned mask;
    int bytes;
    unsigned char mine[SLOT];
    unsigned char theirs[32 * SLOT];
    std::vector<std::vector<Copy>> copies;  // batches, the last one open
};
struct Buffer { unsigned char *pages; size_t size; unsigned char *data; size_t bytes; };

std::vector<Fiber *> fibers;  // kept from launch to launch
std::vector<unsigned char *> stacks;
std::vector<Buffer> buffers;
unsigned threads, now;
jmp_buf scheduler;
sigjmp_buf out;
char message[1024];
void (*kernel)(void **);
void **kernel_arguments;
unsigned char *shared_memory;
bool broken;

void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
}

void body() {
    for (;;) {  // a fiber is used again for the next block
        kernel(kernel_arguments);
        fibers[now]->state = DONE;
        if (!_setjmp(fibers[now]->context)) _longjmp(scheduler, 1);
    }
}

void resume(unsigned i) {
    now = i;
    Fiber &fiber = *fibers[i];
    threadIdx = fiber.index;
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.context, 1);
    fiber.started = true;
    setcontext(&fiber.first);
}

void wait(State state, int line) {
    Fiber &fiber = *fibers[now];
    fiber.state = state;
    fiber.line = line;
    if (!_setjmp(fiber.context)) _longjmp(scheduler, 1);
}

// The lanes of a warp that can go on together get what each of them gave.
bool release_exchanges(unsigned warp) {
    const unsigned first = warp * 32, lanes = min(32u, threads - first);
    bool any = false;
    for (unsigned i = 0; i < lanes; i++) {
        Fiber &one = *fibers[first + i];
        if (one.state != AT_EXCHANGE) continue;
        bool all = true;
        for (unsigned j = 0; j < 32 && all; j++) {
            if (!(one.mask >> j & 1)) continue;
            all = j < lanes && fibers[first + j]->state == AT_EXCHANGE && fibers[first + j]->mask == one.mask &&
                  fibers[first + j]->line == one.line && fibers[first + j]->bytes == one.bytes;
        }
        if (!all) continue;
        for (unsigned j = 0; j < lanes; j++)
            if (one.mask >> j & 1)
                for (unsigned k = 0; k < lanes; k++)
                    memcpy(fibers[first + j]->theirs + k * SLOT, fibers[first + k]->mine, one.bytes);
        const unsigned mask = one.mask;
        for (unsigned j = 0; j < lanes; j++)
            if (mask >> j & 1) fibers[first + j]->state = READY;
        any = true;
    }
    return any;
}

bool release_barrier() {
    const int line = fibers[0]->line;
    for (unsigned i = 0; i < threads; i++)
        if (fibers[i]->state != AT_BARRIER || fibers[i]->line != line) return false;
    for (unsigned i = 0; i < threads; i++) fibers[i]->state = READY;
    return true;
}

bool alike(const Fiber &a, const Fiber &b) {
    return a.state == b.state && (a.state == DONE || a.line == b.line) && (a.state != AT_EXCHANGE || a.mask == b.mask);
}

void stuck() {
    char text[700];
    size_t at = 0;
    const char *names[] = {"ready", "waits at __syncthreads", "waits for its warp", "has returned"};
    for (unsigned i = 0, shown = 0; i < threads && shown < 6; i++) {
        const Fiber &f = *fibers[i];
        if (i && alike(f, *fibers[i - 1])) continue;
        at += snprintf(text + at, sizeof text - at, "; from thread %u on: %s", i, names[f.state]);
        if (f.state != DONE) at += snprintf(text + at, sizeof text - at, " in line %d", f.line);
        if (f.state == AT_EXCHANGE) at += snprintf(text + at, sizeof text - at, " with mask %08x", f.mask);
        shown++;
    }
    say("threads of block (%u, %u, %u) wait for each other in vain%s", blockIdx.x, blockIdx.y, blockIdx.z, text);
    siglongjmp(out, 1);
}

void run_block(bool reverse) {
    if (__start_cuda_shared) memset(__start_cuda_shared, POISON, __stop_cuda_shared - __start_cuda_shared);
    for (unsigned i = 0; i < threads; i++) {
        fibers[i]->state = READY;
        fibers[i]->copies.assign(1, {});
        fibers[i]->mask = 0;
        fibers[i]->index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    }
    for (;;) {
        unsigned done = 0;
        for (unsigned i = 0; i < threads; i++) {
            const unsigned which = reverse ? threads - 1 - i : i;
            if (fibers[which]->state == READY) resume(which);
        }
        bool released = false;
        for (unsigned i = 0; i < threads; i++) done += fibers[i]->state == DONE;
        for (unsigned warp = 0; warp * 32 < threads; warp++) released |= release_exchanges(warp);
        if (!released) released = release_barrier();
        if (done == threads) return;
        if (!released) stuck();
    }
}

std::vector<unsigned> block_order(unsigned blocks, bool shuffled) {
    std::vector<unsigned> order(blocks);
    for (unsigned i = 0; i < blocks; i++) order[i] = i;
    unsigned random = 1;
    for (unsigned i = blocks; shuffled && i > 1; i--) {
        random = random * 1664525u + 1013904223u;
        const unsigned other = (random >> 8) % i, moved = order[i - 1];
        order[i - 1] = order[other];
        order[other] = moved;
    }
    return order;
}

void fault(int signal, siginfo_t *about, void *) {
    const unsigned char *address = static_cast<unsigned char *>(about->si_addr);
    int written = snprintf(message, sizeof message, "thread (%u, %u, %u) of block (%u, %u, %u) ", threadIdx.x, threadIdx.y,
                           threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z);
    char *rest = message + written;
    const size_t room = sizeof message - written;
    if (signal != SIGSEGV) {
        snprintf(rest, room, "does what C++ leaves undefined: a misaligned vector, a shift by 32 or more, an overflow, "
                             "or an index beyond an array");
    } else {
        snprintf(rest, room, "touched address %p, of no buffer", static_cast<const void *>(address));
        for (size_t i = 0; i < buffers.size(); i++)
            if (address >= buffers[i].pages && address < buffers[i].pages + buffers[i].size)
                snprintf(rest, room, "touched byte %td of %s %zu, which has %zu bytes", address - buffers[i].data,
                         buffers[i].data == shared_memory ? "shared memory, buffer" : "buffer", i, buffers[i].bytes);
    }
    siglongjmp(out, 1);
}

}  // namespace

void *dynamic_shared() { return shared_memory; }
void barrier(int line) { wait(AT_BARRIER, line); }
unsigned lane() { return now % 32; }

void fail(const char *cause) {
    say("thread (%u, %u, %u) of block (%u, %u, %u): %s", threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y,
        blockIdx.z, cause);
    siglongjmp(out, 1);
}

const unsigned char *exchange(unsigned mask, const void *mine, int bytes, int line) {
    if (!(mask >> lane() & 1)) fail("calls a warp function whose mask does not name it");
    Fiber &fiber = *fibers[now];
    memcpy(fiber.mine, mine, bytes);
    fiber.bytes = bytes;
    fiber.mask = mask;
    wait(AT_EXCHANGE, line);
    return fiber.theirs;
}

// A copy happens when its thread waits for it, not sooner: a kernel that does not wait reads poison.
void copy_start(void *to, const void *from, int bytes) { fibers[now]->copies.back().push_back({to, from, bytes}); }
void copy_commit() { fibers[now]->copies.emplace_back(); }
void copy_wait(int open) {
    auto &batches = fibers[now]->copies;
    while (static_cast<int>(batches.size()) - 1 > open) {
        for (const Copy &copy : batches.front()) {
            if (reinterpret_cast<uintptr_t>(copy.to) % copy.bytes || reinterpret_cast<uintptr_t>(copy.from) % copy.bytes)
                fail("an asynchronous copy is not aligned to its size");
            memcpy(copy.to, copy.from, copy.bytes);
        }
        batches.erase(batches.begin());
    }
}

}  // namespace cuda_on_host

using namespace cuda_on_host;

// Memory that ends, rounded up to 16 bytes, where a page without access begins; poisoned.
extern "C" void *buffer_new(size_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), rounded = (bytes + 15) / 16 * 16;
    const size_t size = (rounded + page - 1) / page * page + 2 * page;
    void *pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    unsigned char *at = static_cast<unsigned char *>(pages);
    mprotect(at, page, PROT_NONE);
    mprotect(at + size - page, page, PROT_NONE);
    memset(at + page, POISON, size - 2 * page);
    buffers.push_back({at, size, at + size - page - rounded, bytes});
    return buffers.back().data;
}

// The first buffer around which something was written, or -1.
extern "C" int buffers_overrun() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (size_t i = 0; i < buffers.size(); i++) {
        const Buffer &b = buffers[i];
        for (const unsigned char *at = b.pages + page; at < b.pages + b.size - page; at++)
            if ((at < b.data || at >= b.data + b.bytes) && *at != POISON) return static_cast<int>(i);
    }
    return -1;
}

extern "C" void buffers_free() {
    for (const Buffer &b : buffers) munmap(b.pages, b.size);
    buffers.clear();
}

// 0, or 1 with the cause in *cause.
extern "C" int launch(void (*function)(void **), const unsigned *grid, const unsigned *block, size_t shared,
                      void **arguments, int reverse, const char **cause) {
    kernel = function;
    kernel_arguments = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    threads = block[0] * block[1] * block[2];
    *cause = message;
    while (fibers.size() < threads) {
        fibers.push_back(new Fiber);
        stacks.push_back(static_cast<unsigned char *>(malloc(STACK)));
    }
    if (broken)  // a launch failed: what it left in the middle does not go on
        for (Fiber *fiber : fibers) fiber->started = false;
    for (unsigned i = 0; i < threads; i++) {
        if (fibers[i]->started) continue;
        getcontext(&fibers[i]->first);
        fibers[i]->first.uc_stack.ss_sp = stacks[i];
        fibers[i]->first.uc_stack.ss_size = STACK;
        fibers[i]->first.uc_link = nullptr;
        makecontext(&fibers[i]->first, body, 0);
    }
    broken = true;
    struct sigaction mine = {}, segv, ill, trap;
    mine.sa_sigaction = fault;
    mine.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &mine, &segv);
    sigaction(SIGILL, &mine, &ill);
    sigaction(SIGTRAP, &mine, &trap);
    const int failed = sigsetjmp(out, 1);
    if (!failed) {
        shared_memory = static_cast<unsigned char *>(buffer_new(shared));
        const unsigned blocks = grid[0] * grid[1] * grid[2];
        const std::vector<unsigned> order = block_order(blocks, reverse);
        for (unsigned i = 0; i < blocks; i++) {
            const unsigned which = order[i];
            blockIdx = {which % grid[0], which / grid[0] % grid[1], which / grid[0] / grid[1]};
            memset(shared_memory, POISON, shared);
            run_block(reverse);
        }
        broken = false;
    }
    sigaction(SIGSEGV, &segv, nullptr);
    sigaction(SIGILL, &ill, nullptr);
    sigaction(SIGTRAP, &trap, nullptr);
    return failed;
}
