// A CUDA driver without a GPU, for tests of the launch recorder.
//
// Streams have a worker thread each, which does the work of the stream in order and later than the call: streams are
// concurrent, events order them. The name of a kernel says what it does (see `behaviour`). A fault happens when the
// kernel runs: what has not finished in its context never does, and every later call there returns the error.
//
// Objects are never freed: a late use is then an error code and not a crash of the fake. But as the real driver does, it
// gives the address of a destroyed one to the next.
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define DEVICES 8
#define QUEUE 1024 // As deep as the real one: then a launch waits for room.
#define DEPENDENCIES 16

// ---- Objects ----

enum kind { KERNEL, COPY, SET, WRITE, HOST, GRAPH, WAIT, EMPTY };

struct work {
    struct work *next;
    enum kind kind;
    uint64_t ordinal; // 0 for what a program does not see as a launch: markers, waits.
    uint64_t executions;
    // KERNEL
    const char *name;
    unsigned microseconds;
    volatile uint32_t *word;
    // COPY, SET, WRITE
    char *to;
    const char *from;
    char *staged; // a copy of pageable memory, taken at the call
    size_t bytes;
    uint64_t value;
    unsigned width;
    // HOST
    CUhostFn function;
    void *data;
    // GRAPH
    struct work *nodes;
    size_t count;
    // WAIT
    struct CUstream_st *stream;
    uint64_t until;
};

struct CUgraphNode_st {
    struct CUgraphNode_st *next;
    struct work work;
    struct CUgraphNode_st *after[DEPENDENCIES];
    size_t after_count;
    bool reached;
};

struct CUgraph_st {
    struct CUgraph_st *next;
    struct CUgraphNode_st *first, **last;
    size_t count;
    bool destroyed;
};

struct CUgraphExec_st {
    struct CUgraphExec_st *next;
    struct work *nodes;
    size_t count;
    struct CUstream_st *launched; // where it was launched last, and how far that stream must come
    uint64_t until;
    bool destroyed;
};

struct capture {
    uint64_t id;
    CUcontext context;
    CUstream origin;
    CUgraph graph;
    CUstreamCaptureMode mode;
    pthread_t thread;
    bool invalid, ended;
    struct capture *next;
};

struct place { // Where a captured stream is: what its next node comes after.
    struct capture *capture;
    CUgraphNode after[DEPENDENCIES];
    size_t count;
};

struct CUstream_st {
    struct CUstream_st *next;
    CUcontext context;
    uint64_t id;
    unsigned flags;
    struct work *first, **last;
    uint64_t enqueued, completed, queued;
    pthread_cond_t wake;
    struct place place;
    bool started, destroyed;
};

struct CUevent_st {
    CUcontext context;
    CUstream stream;
    uint64_t until;
    struct place place;
    bool destroyed;
};

struct CUctx_st {
    uint32_t uid;
    CUdevice device;
    CUresult error; // of the first fault; it stays
    char text[512]; // the assertion, until the driver first returns the error
    CUstream streams;
    struct CUstream_st legacy;
    bool destroyed;
};

struct CUfunc_st {
    uint32_t magic;
    char name[1];
};

enum { FUNCTION = 0x46554e43, KERNEL_HANDLE = 0x4b45524e };

struct memory {
    struct memory *next;
    char *start;
    size_t bytes;
    CUcontext context;
    bool pinned, mapped, portable;
};

// ---- State: one lock for all of it ----

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress; // work finished, a context died, memory changed
static struct memory *memories;
static struct capture *captures;
static struct CUgraphExec_st *execs;
static CUgraph graphs;
static struct CUctx_st *primary[DEVICES];
static uint32_t contexts;
static uint64_t stream_ids, capture_ids, ordinals;

static atomic_int state; // 0 before cuInit, 1 while in it, 2 after, 3 when the process ends
static pid_t owner;
static _Atomic(fake_tracer) tracer;
static atomic_uint correlation_ids;

static _Thread_local CUcontext stack[16];
static _Thread_local int depth; // stack[depth] is the current context; stack[0] is what cuCtxSetCurrent sets
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static _Thread_local CUstream thread_stream;
static _Thread_local uint64_t last_ordinal;

// ---- Knobs ----

static struct {
    int devices, driver_version;
    bool markers, pinned_memory;
    unsigned slow_launch, slow_return, fault_delay;
    uint64_t fault_at, fault_execution;
    CUresult fault_code;
    const char *truth;
} knobs = {.devices = 1, .driver_version = FAKE_DRIVER_VERSION, .markers = true, .pinned_memory = true,
           .fault_execution = 1, .fault_code = CUDA_ERROR_ASSERT};

static unsigned number(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text && *text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static bool is(const char *name, const char *value) {
    const char *text = getenv(name);
    return text && !strcmp(text, value);
}

static void read_knobs(void) {
    knobs.devices = (int)number("FAKE_DEVICES", 1);
    if (knobs.devices > DEVICES) knobs.devices = DEVICES;
    knobs.driver_version = (int)number("FAKE_DRIVER_VERSION", FAKE_DRIVER_VERSION);
    knobs.markers = !is("FAKE_MARKERS", "unsupported");
    knobs.pinned_memory = !is("FAKE_PINNED", "none");
    knobs.slow_launch = number("FAKE_SLOW_LAUNCH", 0);
    knobs.slow_return = number("FAKE_SLOW_RETURN", 0);
    knobs.fault_delay = number("FAKE_FAULT_DELAY", 0);
    knobs.fault_code = (CUresult)number("FAKE_FAULT_CODE", CUDA_ERROR_ASSERT);
    knobs.truth = getenv("FAKE_TRUTH");
    const char *at = getenv("FAKE_FAULT_AT"); // ORDINAL or ORDINAL@EXECUTION
    if (at) {
        char *rest;
        knobs.fault_at = strtoull(at, &rest, 10);
        if (*rest == '@') knobs.fault_execution = strtoull(rest + 1, NULL, 10);
    }
}

// ---- Time ----

static struct timespec in_microseconds(uint64_t microseconds) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    uint64_t nanoseconds = (uint64_t)at.tv_nsec + microseconds % 1000000 * 1000;
    at.tv_sec += (time_t)(microseconds / 1000000 + nanoseconds / 1000000000);
    at.tv_nsec = (long)(nanoseconds % 1000000000);
    return at;
}

static void condition(pthread_cond_t *new) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(new, &attributes);
    pthread_condattr_destroy(&attributes);
}

// ---- The device ----

static const struct {
    const char *word;
    CUresult code;
} faults[] = {
    {"fault_assert", CUDA_ERROR_ASSERT},         {"fault_illegal", CUDA_ERROR_ILLEGAL_ADDRESS},
    {"fault_misaligned", CUDA_ERROR_MISALIGNED_ADDRESS}, {"fault_launch", CUDA_ERROR_LAUNCH_FAILED},
    {"fault_instruction", CUDA_ERROR_ILLEGAL_INSTRUCTION}, {"fault_space", CUDA_ERROR_INVALID_ADDRESS_SPACE},
    {"fault_pc", CUDA_ERROR_INVALID_PC},
};

// What a kernel does, by its name, wherever in the symbol: `fault_<how>` faults once it has run for its time, if it has
// no word or its word is not 0 by then; `spin` runs until its word is not 0, or for ever; anything else takes its time.
// Every kernel has two parameters: uint32_t microseconds, uint32_t *word (0 for none).
static CUresult behaviour(const struct work *work) {
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        if (strstr(work->name, faults[i].word)) return !work->word || *work->word ? faults[i].code : CUDA_SUCCESS;
    }
    return CUDA_SUCCESS;
}

// Waits on the device's side; whether the context still lives.
static bool pass(CUcontext context, unsigned microseconds) {
    struct timespec until = in_microseconds(microseconds);
    while (!context->error && pthread_cond_timedwait(&progress, &lock, &until) != ETIMEDOUT) {}
    return !context->error;
}

static void die(CUcontext context, const struct work *work, CUresult code) {
    if (knobs.fault_delay) pass(context, knobs.fault_delay);
    if (context->error) return; // another stream was first
    context->error = code;
    if (code == CUDA_ERROR_ASSERT) {
        snprintf(context->text, sizeof context->text,
                 "fake.cu:93: %s: block: [0,0,0], thread: [1,0,0] Assertion `word == 0` failed.\n",
                 work->name ? work->name : "copy");
    }
    if (knobs.truth) {
        int file = open(knobs.truth, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (file >= 0) {
            dprintf(file, "fault %llu %d\n", (unsigned long long)work->ordinal, code);
            close(file);
        }
    }
    pthread_cond_broadcast(&progress);
}

// Does one piece of work, under the lock; whether it finished.
static bool execute(CUcontext context, struct work *work) {
    if (context->error) return false;
    if (work->ordinal) work->executions++;
    CUresult fault = work->ordinal && work->ordinal == knobs.fault_at && work->executions == knobs.fault_execution
                         ? knobs.fault_code
                         : CUDA_SUCCESS;
    switch (work->kind) {
    case KERNEL:
        if (work->microseconds && !pass(context, work->microseconds)) return false;
        if (strstr(work->name, "spin")) {
            while (!context->error && !(work->word && *work->word)) pass(context, 1000);
        }
        if (!fault) fault = behaviour(work);
        break;
    case COPY:
        if (!fault) memcpy(work->to, work->staged ? work->staged : work->from, work->bytes);
        break;
    case SET:
        for (size_t i = 0; !fault && i < work->bytes; i += work->width) memcpy(work->to + i, &work->value, work->width);
        break;
    case WRITE: // Visible to the host at once, in order with all that came before.
        if (work->width == 8) atomic_store((_Atomic uint64_t *)(void *)work->to, work->value);
        else atomic_store((_Atomic uint32_t *)(void *)work->to, (uint32_t)work->value);
        break;
    case HOST:
        pthread_mutex_unlock(&lock);
        work->function(work->data);
        pthread_mutex_lock(&lock);
        break;
    case GRAPH:
        for (size_t i = 0; i < work->count; i++) {
            struct work *node = &work->nodes[i];
            if (fault && node->ordinal) return die(context, node, fault), false;
            if (!execute(context, node)) return false;
        }
        break;
    case WAIT:
        while (!context->error && work->stream->completed < work->until) {
            if (work->stream->context->error) return false; // for ever: what it waits for is dead
            pthread_cond_wait(&progress, &lock);
        }
        break;
    case EMPTY: break;
    }
    if (fault) die(context, work, fault);
    return !context->error;
}

static void *worker(void *argument) {
    CUstream stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first) pthread_cond_wait(&stream->wake, &lock);
        struct work *work = stream->first;
        bool finished = execute(stream->context, work);
        stream->first = work->next;
        if (!stream->first) stream->last = &stream->first;
        stream->queued--;
        if (finished) stream->completed++;
        free(work->staged);
        free(work);
        pthread_cond_broadcast(&progress);
    }
    return NULL;
}

// ---- Streams ----

static CUresult alive(CUcontext context) {
    if (!context || context->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
    return context->error;
}

static void stream_start(CUstream stream, CUcontext context, unsigned flags) {
    stream->context = context;
    stream->flags = flags;
    stream->id = ++stream_ids;
    stream->last = &stream->first;
    condition(&stream->wake);
    stream->next = context->streams;
    context->streams = stream;
}

// The stream that a handle stands for in the current context.
static CUresult resolve(CUstream *stream, bool per_thread) {
    CUcontext current = stack[depth];
    if (*stream == NULL && per_thread) *stream = CU_STREAM_PER_THREAD;
    if (*stream == NULL || *stream == CU_STREAM_LEGACY) {
        if (!current) return CUDA_ERROR_INVALID_CONTEXT;
        *stream = &current->legacy;
    } else if (*stream == CU_STREAM_PER_THREAD) {
        if (!current) return CUDA_ERROR_INVALID_CONTEXT;
        if (!thread_stream || thread_stream->context != current) {
            thread_stream = calloc(1, sizeof *thread_stream);
            stream_start(thread_stream, current, 0);
        }
        *stream = thread_stream;
    }
    if ((*stream)->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    return alive((*stream)->context);
}

static CUresult invalidate(struct capture *capture, CUresult why) {
    capture->invalid = true;
    return why;
}

// Whether the calling thread may do what is unsafe during a capture (see cuThreadExchangeStreamCaptureMode).
static CUresult safe(void) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (struct capture *c = captures; c; c = c->next) {
        if (c->ended || c->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
        bool own = pthread_equal(c->thread, pthread_self());
        bool others =
            thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (own || others) result = invalidate(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    return result;
}

// What waits for a whole context may not be done while one of its streams captures, in whatever mode.
static CUresult no_capture_in(CUcontext context, CUresult why) {
    for (struct capture *c = captures; c; c = c->next) {
        if (!c->ended && c->context == context) return invalidate(c, why);
    }
    return CUDA_SUCCESS;
}

static CUgraphNode node_add(struct place *place, const struct work *work) {
    CUgraph graph = place->capture->graph;
    CUgraphNode node = calloc(1, sizeof *node);
    node->work = *work;
    node->work.next = NULL;
    node->after_count = place->count;
    memcpy(node->after, place->after, sizeof node->after);
    *graph->last = node;
    graph->last = &node->next;
    graph->count++;
    place->after[0] = node;
    place->count = 1;
    return node;
}

static CUresult place_join(struct place *place, const struct place *other) {
    if (place->capture && place->capture != other->capture) {
        return invalidate(place->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    place->capture = other->capture;
    for (size_t i = 0; i < other->count; i++) {
        bool there = false;
        for (size_t j = 0; j < place->count; j++) there = there || place->after[j] == other->after[i];
        if (there) continue;
        if (place->count == DEPENDENCIES) return CUDA_ERROR_NOT_SUPPORTED;
        place->after[place->count++] = other->after[i];
    }
    return CUDA_SUCCESS;
}

static struct capture *capturing(CUstream stream) { return stream->place.capture; }

static void append(CUstream stream, const struct work *work) {
    struct work *copy = malloc(sizeof *copy);
    *copy = *work;
    copy->next = NULL;
    *stream->last = copy;
    stream->last = &copy->next;
    stream->enqueued++;
    stream->queued++;
    if (!stream->started) {
        stream->started = true;
        pthread_t thread;
        pthread_create(&thread, NULL, worker, stream);
        pthread_detach(thread);
    }
    pthread_cond_signal(&stream->wake);
}

static void wait_for(CUstream stream, CUstream other) {
    if (other == stream || other->completed >= other->enqueued) return;
    append(stream, &(struct work){.kind = WAIT, .stream = other, .until = other->enqueued});
}

// Lets other threads at the driver for a while.
static void linger(unsigned microseconds) {
    if (!microseconds) return;
    pthread_mutex_unlock(&lock);
    usleep(microseconds);
    pthread_mutex_lock(&lock);
}

// Hands work to a stream, or to the graph that the stream captures.
static CUresult enqueue(CUstream stream, struct work *work, bool counts, CUgraphNode *node) {
    CUcontext context = stream->context;
    struct capture *capture = capturing(stream);
    if (capture && capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream == &context->legacy) {
        for (struct capture *c = captures; c; c = c->next) {
            if (c->ended || c->context != context || c->origin->flags & CU_STREAM_NON_BLOCKING) continue;
            return invalidate(c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
    }
    if (counts) last_ordinal = work->ordinal = ++ordinals;
    if (capture) {
        CUgraphNode added = node_add(&stream->place, work);
        if (node) *node = added;
        return CUDA_SUCCESS;
    }
    if (counts) linger(knobs.slow_launch);
    while (stream->queued >= QUEUE && !context->error) pthread_cond_wait(&progress, &lock);
    if (context->error) return context->error;
    if (stream == &context->legacy) {
        for (CUstream other = context->streams; other; other = other->next) {
            if (!(other->flags & CU_STREAM_NON_BLOCKING)) wait_for(stream, other);
        }
    } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
        wait_for(stream, &context->legacy);
    }
    append(stream, work);
    if (counts) linger(knobs.slow_return);
    return CUDA_SUCCESS;
}

// Waits, on the host's side, until a stream has done the first `until` pieces of its work.
static CUresult finish(CUstream stream, uint64_t until) {
    CUcontext context = stream->context;
    while (!context->error && stream->completed < until) pthread_cond_wait(&progress, &lock);
    return context->error;
}

static CUresult finish_all(CUcontext context) {
    for (CUstream stream = context->streams; stream; stream = stream->next) {
        CUresult result = finish(stream, stream->enqueued);
        if (result) return result;
    }
    return context->error;
}

// ---- Memory ----

static struct memory *memory_at(const void *address, size_t bytes) {
    const char *start = address;
    for (struct memory *m = memories; m; m = m->next) {
        if (start >= m->start && bytes <= m->bytes && (size_t)(start - m->start) <= m->bytes - bytes) return m;
    }
    return NULL;
}

static struct memory *memory_new(size_t bytes) {
    struct memory *m = calloc(1, sizeof *m);
    m->bytes = bytes;
    m->start = aligned_alloc(256, (bytes + 255) & ~(size_t)255);
    m->context = stack[depth];
    m->next = memories;
    memories = m;
    return m;
}

static CUresult memory_free(const void *address) {
    for (struct memory **m = &memories; *m; m = &(*m)->next) {
        if ((*m)->start != address) continue;
        CUresult result = finish_all((*m)->context);
        if (!result) *m = (*m)->next;
        return result;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

// ---- The wrapper of every entry point ----

enum { ANYWHERE = 0, INITIALISED = 1, CONTEXT = 2, ALIVE = 4, UNSAFE = 8 };

static CUresult permitted(unsigned needs) {
    int now = atomic_load(&state);
    if (!needs) return CUDA_SUCCESS;
    if (now == 3) return CUDA_ERROR_DEINITIALIZED;
    if (now != 2 || getpid() != owner) return CUDA_ERROR_NOT_INITIALIZED;
    CUcontext current = stack[depth];
    if (needs & CONTEXT && (!current || current->destroyed)) return CUDA_ERROR_INVALID_CONTEXT;
    if (needs & ALIVE && current && current->error) return current->error;
    return needs & UNSAFE ? safe() : CUDA_SUCCESS;
}

static void enter(struct fake_call *call) {
    fake_tracer to = atomic_load(&tracer);
    if (!to) return;
    call->context = stack[depth];
    call->context_uid = call->context ? call->context->uid : 0;
    call->correlation_id = atomic_fetch_add(&correlation_ids, 1) + 1;
    to(call, CUPTI_API_ENTER);
}

// In a forked child the lock may be held by a thread that is not there.
static bool ours(void) { return owner == 0 || getpid() == owner; }
static void acquire(void) {
    if (ours()) pthread_mutex_lock(&lock);
}
static void release(void) {
    if (ours()) pthread_mutex_unlock(&lock);
}

// The driver prints a device assertion when it first notices it, on the thread of that call.
static void print_assertion(CUresult result) {
    if (result != CUDA_ERROR_ASSERT || !ours()) return;
    char text[sizeof ((CUcontext)0)->text] = "";
    acquire();
    CUcontext current = stack[depth];
    if (current && current->error == result) {
        memcpy(text, current->text, sizeof text);
        current->text[0] = 0;
    }
    release();
    if (*text && write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

static CUresult leave(struct fake_call *call, CUresult result) {
    print_assertion(result);
    call->result = result;
    fake_tracer to = atomic_load(&tracer);
    if (to) {
        call->context = stack[depth];
        call->context_uid = call->context ? call->context->uid : 0;
        to(call, CUPTI_API_EXIT);
    }
    return result;
}

#ifdef FAKE_CHECK_AGAINST_HEADERS
#define CHECKED(api) _Static_assert(sizeof params == sizeof(api##_params), #api);
#else
#define CHECKED(api)
#endif

// FIELDS are the parameters as structure members, VALUES the same as expressions; both are what CUPTI calls
// `functionParams`. BODY is an expression, evaluated under the lock; SYMBOL the kernel of a launch.
#define CALL(api, needs, symbol_, fields, values, body)                                                              \
    {                                                                                                                 \
        struct fields params = values;                                                                                \
        CHECKED(api)                                                                                                 \
        struct fake_call call = {                                                                                     \
            .id = CUPTI_DRIVER_TRACE_CBID_##api, .name = #api, .params = &params, .symbol = symbol_};               \
        enter(&call);                                                                                                 \
        acquire();                                                                                                    \
        CUresult result = permitted(needs);                                                                           \
        if (!result) result = (body);                                                                                 \
        release();                                                                                                    \
        return leave(&call, result);                                                                                  \
    }
#define P(...) {__VA_ARGS__}
#define API1(api, needs, T1, a, body) \
    EXPORT CUresult api(T1 a) CALL(api, needs, NULL, P(T1 a;), P(a), body)
#define API2(api, needs, T1, a, T2, b, body) \
    EXPORT CUresult api(T1 a, T2 b) CALL(api, needs, NULL, P(T1 a; T2 b;), P(a, b), body)
#define API3(api, needs, T1, a, T2, b, T3, c, body) \
    EXPORT CUresult api(T1 a, T2 b, T3 c) CALL(api, needs, NULL, P(T1 a; T2 b; T3 c;), P(a, b, c), body)
#define API4(api, needs, T1, a, T2, b, T3, c, T4, d, body)    \
    EXPORT CUresult api(T1 a, T2 b, T3 c, T4 d)               \
        CALL(api, needs, NULL, P(T1 a; T2 b; T3 c; T4 d;), P(a, b, c, d), body)

static const char *symbol_of(CUfunction function) {
    if (!function || (function->magic != FUNCTION && function->magic != KERNEL_HANDLE)) return NULL;
    return function->name;
}

// ---- Initialisation ----

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static void end_of_process(void) {
    if (getpid() == owner) atomic_store(&state, 3);
}

// As the real driver: the library that the environment names is loaded and asked to begin, before cuInit returns.
static void inject(void) {
    const char *path = getenv("CUDA_INJECTION64_PATH");
    if (!path || !*path) return;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    int (*begin)(void);
    *(void **)&begin = dlsym(library, "InitializeInjection");
    if (begin) begin();
}

static CUresult initialise(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (owner && getpid() != owner) return CUDA_ERROR_NOT_INITIALIZED;
    static _Thread_local bool within; // the injected library asks for what is not there yet
    if (within) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&init_lock);
    if (atomic_load(&state) == 0) {
        read_knobs();
        condition(&progress);
        atomic_store(&state, 1);
        atexit(end_of_process); // before the injected library's own: it still has a driver when it ends
        owner = getpid();
        within = true;
        inject();
        within = false;
        atomic_store(&state, 2);
    }
    pthread_mutex_unlock(&init_lock);
    return atomic_load(&state) == 3 ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned int Flags) {
    // Not under the lock: the injected library calls the driver.
    struct {
        unsigned int Flags;
    } params = {Flags};
    struct fake_call call = {.id = CUPTI_DRIVER_TRACE_CBID_cuInit, .name = "cuInit", .params = &params};
    enter(&call);
    return leave(&call, initialise(Flags));
}

#define GIVE(pointer, value) ((pointer) ? (*(pointer) = (value), CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE)

API1(cuDriverGetVersion, ANYWHERE, int *, driverVersion,
     GIVE(driverVersion, atomic_load(&state) ? knobs.driver_version : FAKE_DRIVER_VERSION))

// ---- Devices ----

static bool device_exists(int ordinal) { return ordinal >= 0 && ordinal < knobs.devices; }

static int device_attribute(int attribute) {
    switch (attribute) {
    case 1: return 1024;  // threads a block
    case 10: return 32;   // warp
    case 16: return 132;  // multiprocessors
    case 75: return 9;    // compute capability
    case 76: return 0;
    default: return 1;    // every other one that is asked for says whether something can be done
    }
}

static CUresult device_name(char *name, int len, CUdevice dev) {
    if (!device_exists(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (!name || len < 1) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "fake GPU %d", dev);
    return CUDA_SUCCESS;
}

API1(cuDeviceGetCount, INITIALISED, int *, count, GIVE(count, knobs.devices))
API2(cuDeviceGet, INITIALISED, CUdevice *, device, int, ordinal,
     device_exists(ordinal) ? GIVE(device, ordinal) : CUDA_ERROR_INVALID_DEVICE)
API3(cuDeviceGetName, INITIALISED, char *, name, int, len, CUdevice, dev, device_name(name, len, dev))
API3(cuDeviceGetAttribute, INITIALISED, int *, pi, CUdevice_attribute, attrib, CUdevice, dev,
     device_exists(dev) ? GIVE(pi, device_attribute((int)attrib)) : CUDA_ERROR_INVALID_DEVICE)

// ---- Contexts ----

static CUcontext context_new(CUdevice device) {
    CUcontext context = calloc(1, sizeof *context);
    context->uid = ++contexts;
    context->device = device;
    stream_start(&context->legacy, context, 0);
    return context;
}

static CUresult context_create(CUcontext *context, CUdevice device) {
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (depth + 1 == sizeof stack / sizeof *stack) return CUDA_ERROR_OUT_OF_MEMORY;
    *context = context_new(device);
    stack[++depth] = *context;
    return CUDA_SUCCESS;
}

static CUresult context_retain(CUcontext *context, CUdevice device) {
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!primary[device]) primary[device] = context_new(device);
    return GIVE(context, primary[device]);
}

static CUresult context_push(CUcontext context) {
    if (!context || context->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
    if (depth + 1 == sizeof stack / sizeof *stack) return CUDA_ERROR_OUT_OF_MEMORY;
    stack[++depth] = context;
    return CUDA_SUCCESS;
}

static CUresult context_pop(CUcontext *context) {
    if (depth == 0 && !stack[0]) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = stack[depth];
    stack[depth] = NULL;
    if (depth) depth--;
    return CUDA_SUCCESS;
}

static CUresult context_destroy(CUcontext context) {
    if (!context || context->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = finish_all(context);
    context->destroyed = true;
    if (stack[depth] == context) context_pop(NULL);
    return result;
}

static CUresult context_synchronize(void) {
    CUresult result = no_capture_in(stack[depth], CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return result ? result : finish_all(stack[depth]);
}

API3(cuCtxCreate_v2, INITIALISED, CUcontext *, pctx, unsigned int, flags, CUdevice, dev, context_create(pctx, dev))
API4(cuCtxCreate_v4, INITIALISED, CUcontext *, pctx, CUctxCreateParams *, ctxCreateParams, unsigned int, flags,
     CUdevice, dev, context_create(pctx, dev))
API1(cuCtxDestroy_v2, INITIALISED, CUcontext, ctx, context_destroy(ctx))
API2(cuDevicePrimaryCtxRetain, INITIALISED, CUcontext *, pctx, CUdevice, dev, context_retain(pctx, dev))
API1(cuDevicePrimaryCtxRelease_v2, INITIALISED, CUdevice, dev,
     device_exists(dev) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE)
API1(cuCtxSetCurrent, INITIALISED, CUcontext, ctx, (stack[depth] = ctx, CUDA_SUCCESS))
API1(cuCtxGetCurrent, INITIALISED, CUcontext *, pctx, GIVE(pctx, stack[depth]))
API1(cuCtxPushCurrent_v2, INITIALISED, CUcontext, ctx, context_push(ctx))
API1(cuCtxPopCurrent_v2, INITIALISED, CUcontext *, pctx, context_pop(pctx))
API1(cuCtxGetDevice, INITIALISED | CONTEXT, CUdevice *, device, GIVE(device, stack[depth]->device))
API2(cuCtxGetId, INITIALISED, CUcontext, ctx, unsigned long long *, ctxId,
     ctx || stack[depth] ? GIVE(ctxId, (ctx ? ctx : stack[depth])->uid) : CUDA_ERROR_INVALID_CONTEXT)
// (void) parameters make an empty structure: CUPTI has none either.
EXPORT CUresult cuCtxSynchronize(void) {
    struct fake_call call = {.id = CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, .name = "cuCtxSynchronize"};
    enter(&call);
    acquire();
    CUresult result = permitted(INITIALISED | CONTEXT | ALIVE | UNSAFE);
    if (!result) result = context_synchronize();
    release();
    return leave(&call, result);
}

// ---- Memory ----

static CUresult memory_alloc(CUdeviceptr *address, size_t bytes) {
    if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
    struct memory *m = memory_new(bytes);
    memset(m->start, 0xCD, bytes); // as undefined as the real thing
    *address = (CUdeviceptr)(uintptr_t)m->start;
    return CUDA_SUCCESS;
}

static CUresult memory_host_alloc(void **address, size_t bytes, unsigned flags) {
    if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!knobs.pinned_memory) return CUDA_ERROR_OUT_OF_MEMORY;
    struct memory *m = memory_new(bytes);
    m->pinned = true;
    m->mapped = flags & CU_MEMHOSTALLOC_DEVICEMAP;
    m->portable = flags & CU_MEMHOSTALLOC_PORTABLE;
    *address = m->start;
    return CUDA_SUCCESS;
}

static CUresult memory_device_pointer(CUdeviceptr *address, const void *host, unsigned flags) {
    struct memory *m = memory_at(host, 1);
    if (flags || !m || !m->pinned || !m->mapped) return CUDA_ERROR_INVALID_VALUE;
    if (!m->portable && m->context != stack[depth]) return CUDA_ERROR_INVALID_VALUE;
    return GIVE(address, (CUdeviceptr)(uintptr_t)host);
}

API2(cuMemAlloc_v2, INITIALISED | CONTEXT | ALIVE | UNSAFE, CUdeviceptr *, dptr, size_t, bytesize,
     memory_alloc(dptr, bytesize))
API1(cuMemFree_v2, INITIALISED | CONTEXT | ALIVE | UNSAFE, CUdeviceptr, dptr, memory_free((void *)(uintptr_t)dptr))
API3(cuMemHostAlloc, INITIALISED | CONTEXT | ALIVE | UNSAFE, void **, pp, size_t, bytesize, unsigned int, Flags,
     memory_host_alloc(pp, bytesize, Flags))
API1(cuMemFreeHost, INITIALISED | CONTEXT | ALIVE | UNSAFE, void *, p, memory_free(p))
API3(cuMemHostGetDevicePointer_v2, INITIALISED | CONTEXT, CUdeviceptr *, pdptr, void *, p, unsigned int, Flags,
     memory_device_pointer(pdptr, p, Flags))

enum { HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, UNIFIED };

static CUresult copy(void *to, const void *from, size_t bytes, int direction, CUstream stream, bool synchronous) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    struct memory *target = memory_at(to, bytes), *source = memory_at(from, bytes);
    bool device_target = direction == DEVICE_TO_DEVICE || direction == HOST_TO_DEVICE;
    bool device_source = direction == DEVICE_TO_DEVICE || direction == DEVICE_TO_HOST;
    if ((device_target && !target) || (device_source && !source)) return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.kind = COPY, .to = to, .from = from, .bytes = bytes};
    if (!source && !capturing(stream)) { // pageable memory is read at the call
        work.staged = malloc(bytes ? bytes : 1);
        memcpy(work.staged, from, bytes);
    }
    result = enqueue(stream, &work, true, NULL);
    if (result) free(work.staged);
    // Into pageable memory a copy is never asynchronous.
    if (!result && (synchronous || !target) && !capturing(stream)) result = finish(stream, stream->enqueued);
    return result;
}

static CUresult set(CUdeviceptr to, uint64_t value, unsigned width, size_t count, CUstream stream) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    if (!memory_at((void *)(uintptr_t)to, count * width) || to % width) return CUDA_ERROR_INVALID_VALUE;
    struct work work = {
        .kind = SET, .to = (void *)(uintptr_t)to, .bytes = count * width, .value = value, .width = width};
    return enqueue(stream, &work, true, NULL);
}

#define DEVICE(address) ((void *)(uintptr_t)(address))
enum { WORK = INITIALISED | CONTEXT | ALIVE };

API4(cuMemcpyHtoDAsync_v2, WORK, CUdeviceptr, dstDevice, const void *, srcHost, size_t, ByteCount, CUstream, hStream,
     copy(DEVICE(dstDevice), srcHost, ByteCount, HOST_TO_DEVICE, hStream, false))
API4(cuMemcpyDtoHAsync_v2, WORK, void *, dstHost, CUdeviceptr, srcDevice, size_t, ByteCount, CUstream, hStream,
     copy(dstHost, DEVICE(srcDevice), ByteCount, DEVICE_TO_HOST, hStream, false))
API4(cuMemcpyDtoDAsync_v2, WORK, CUdeviceptr, dstDevice, CUdeviceptr, srcDevice, size_t, ByteCount, CUstream, hStream,
     copy(DEVICE(dstDevice), DEVICE(srcDevice), ByteCount, DEVICE_TO_DEVICE, hStream, false))
API4(cuMemcpyAsync, WORK, CUdeviceptr, dst, CUdeviceptr, src, size_t, ByteCount, CUstream, hStream,
     copy(DEVICE(dst), DEVICE(src), ByteCount, UNIFIED, hStream, false))
API3(cuMemcpyHtoD_v2, WORK | UNSAFE, CUdeviceptr, dstDevice, const void *, srcHost, size_t, ByteCount,
     copy(DEVICE(dstDevice), srcHost, ByteCount, HOST_TO_DEVICE, NULL, true))
API3(cuMemcpyDtoH_v2, WORK | UNSAFE, void *, dstHost, CUdeviceptr, srcDevice, size_t, ByteCount,
     copy(dstHost, DEVICE(srcDevice), ByteCount, DEVICE_TO_HOST, NULL, true))
API4(cuMemsetD8Async, WORK, CUdeviceptr, dstDevice, unsigned char, uc, size_t, N, CUstream, hStream,
     set(dstDevice, uc, 1, N, hStream))
API4(cuMemsetD32Async, WORK, CUdeviceptr, dstDevice, unsigned int, ui, size_t, N, CUstream, hStream,
     set(dstDevice, ui, 4, N, hStream))

static CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned width, unsigned flags) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    if (!knobs.markers) return CUDA_ERROR_NOT_SUPPORTED;
    struct memory *m = memory_at(DEVICE(address), width);
    // Without the barrier: the current entry point of a real driver refuses it.
    if (flags || !m || address % width) return CUDA_ERROR_INVALID_VALUE;
    if (m->pinned && (!m->mapped || (!m->portable && m->context != stream->context))) return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.kind = WRITE, .to = DEVICE(address), .value = value, .width = width};
    return enqueue(stream, &work, false, NULL);
}

API4(cuStreamWriteValue32_v2, WORK, CUstream, stream, CUdeviceptr, addr, cuuint32_t, value, unsigned int, flags,
     write_value(stream, addr, value, 4, flags))
API4(cuStreamWriteValue64_v2, WORK, CUstream, stream, CUdeviceptr, addr, cuuint64_t, value, unsigned int, flags,
     write_value(stream, addr, value, 8, flags))

// ---- Streams and events ----

static CUresult stream_create(CUstream *stream, unsigned flags) {
    if (!stream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = stack[depth];
    for (CUstream old = context->streams; old; old = old->next) {
        if (!old->destroyed || old->completed < old->enqueued) continue;
        old->destroyed = false;
        old->id = ++stream_ids;
        old->flags = flags;
        *stream = old;
        return CUDA_SUCCESS;
    }
    *stream = calloc(1, sizeof **stream);
    stream_start(*stream, context, flags);
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream) {
    if (!stream || stream <= CU_STREAM_PER_THREAD || stream->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    stream->destroyed = true; // what it still has to do is done
    return CUDA_SUCCESS;
}

static CUresult stream_context(CUstream stream, CUcontext *context) {
    CUresult result = resolve(&stream, false);
    return result && result != alive(stream->context) ? result : GIVE(context, stream->context);
}

static CUresult stream_synchronize(CUstream stream) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    if (capturing(stream)) return invalidate(capturing(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (stream == &stream->context->legacy) {
        for (struct capture *c = captures; c; c = c->next) {
            if (c->ended || c->context != stream->context || c->origin->flags & CU_STREAM_NON_BLOCKING) continue;
            return invalidate(c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        for (CUstream other = stream->context->streams; other; other = other->next) {
            if (other->flags & CU_STREAM_NON_BLOCKING) continue;
            if ((result = finish(other, other->enqueued))) return result;
        }
    }
    return finish(stream, stream->enqueued);
}

static CUresult stream_query(CUstream stream) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    if (capturing(stream)) return invalidate(capturing(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return stream->completed >= stream->enqueued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult stream_id(CUstream stream, unsigned long long *id) {
    CUresult result = resolve(&stream, false);
    return result ? result : GIVE(id, stream->id);
}

static CUresult stream_flags(CUstream stream, unsigned *flags) {
    CUresult result = resolve(&stream, false);
    return result ? result : GIVE(flags, stream->flags);
}

static CUresult stream_wait(CUstream stream, CUevent event) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    if (!event || event->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    struct capture *from = event->place.capture;
    if (from && from->ended) from = NULL;
    if (from) {
        if (from->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return place_join(&stream->place, &event->place);
    }
    if (capturing(stream)) return event->stream ? invalidate(capturing(stream), CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
                                                : CUDA_SUCCESS;
    if (event->stream && event->stream != stream && event->stream->completed < event->until) {
        append(stream, &(struct work){.kind = WAIT, .stream = event->stream, .until = event->until});
    }
    return CUDA_SUCCESS;
}

static CUevent spare_event; // the last that was destroyed

static CUresult event_create(CUevent *event) {
    if (!event) return CUDA_ERROR_INVALID_VALUE;
    *event = spare_event ? spare_event : malloc(sizeof **event);
    spare_event = NULL;
    memset(*event, 0, sizeof **event);
    (*event)->context = stack[depth];
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    if (!event || event->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    struct capture *capture = capturing(stream);
    if (capture) {
        if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        event->place = stream->place;
        return CUDA_SUCCESS;
    }
    struct work work = {.kind = EMPTY};
    result = enqueue(stream, &work, false, NULL);
    if (result) return result;
    event->place.capture = NULL;
    event->stream = stream;
    event->until = stream->enqueued;
    return CUDA_SUCCESS;
}

static CUresult event_usable(CUevent event) {
    if (!event || event->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    if (event->place.capture && !event->place.capture->ended) return CUDA_ERROR_CAPTURED_EVENT;
    return alive(event->context);
}

static CUresult event_query(CUevent event) {
    CUresult result = event_usable(event);
    if (result) return result;
    return !event->stream || event->stream->completed >= event->until ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult event_synchronize(CUevent event) {
    CUresult result = event_usable(event);
    if (result || !event->stream) return result;
    return finish(event->stream, event->until);
}

static CUresult event_destroy(CUevent event) {
    if (!event || event->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    event->destroyed = true;
    spare_event = event;
    return CUDA_SUCCESS;
}

API2(cuStreamCreate, WORK, CUstream *, phStream, unsigned int, Flags, stream_create(phStream, Flags))
API3(cuStreamCreateWithPriority, WORK, CUstream *, phStream, unsigned int, flags, int, priority,
     stream_create(phStream, flags))
API1(cuStreamDestroy_v2, WORK, CUstream, hStream, stream_destroy(hStream))
API1(cuStreamSynchronize, WORK | UNSAFE, CUstream, hStream, stream_synchronize(hStream))
API1(cuStreamQuery, WORK | UNSAFE, CUstream, hStream, stream_query(hStream))
API2(cuStreamGetCtx, INITIALISED, CUstream, hStream, CUcontext *, pctx, stream_context(hStream, pctx))
API2(cuStreamGetId, WORK, CUstream, hStream, unsigned long long *, streamId, stream_id(hStream, streamId))
API2(cuStreamGetFlags, WORK, CUstream, hStream, unsigned int *, flags, stream_flags(hStream, flags))
API3(cuStreamWaitEvent, WORK, CUstream, hStream, CUevent, hEvent, unsigned int, Flags, stream_wait(hStream, hEvent))
API2(cuEventCreate, WORK, CUevent *, phEvent, unsigned int, Flags, event_create(phEvent))
API2(cuEventRecord, WORK, CUevent, hEvent, CUstream, hStream, event_record(hEvent, hStream))
API3(cuEventRecordWithFlags, WORK, CUevent, hEvent, CUstream, hStream, unsigned int, flags,
     event_record(hEvent, hStream))
API1(cuEventQuery, WORK | UNSAFE, CUevent, hEvent, event_query(hEvent))
API1(cuEventSynchronize, WORK | UNSAFE, CUevent, hEvent, event_synchronize(hEvent))
API1(cuEventDestroy_v2, WORK, CUevent, hEvent, event_destroy(hEvent))

static CUresult host_function(CUstream stream, CUhostFn function, void *data) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    struct work work = {.kind = HOST, .function = function, .data = data};
    return enqueue(stream, &work, true, NULL);
}

API3(cuLaunchHostFunc, WORK, CUstream, hStream, CUhostFn, fn, void *, userData, host_function(hStream, fn, userData))

// ---- Code and launches ----

static struct CUfunc_st *named(uint32_t magic, const char *name) {
    struct CUfunc_st *function = calloc(1, sizeof *function + strlen(name));
    function->magic = magic;
    strcpy(function->name, name);
    return function;
}

static CUresult function_get(CUfunction *function, const char *name) {
    return name && *name ? GIVE(function, named(FUNCTION, name)) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult kernel_get(CUkernel *kernel, const char *name) {
    return name && *name ? GIVE(kernel, (CUkernel)named(KERNEL_HANDLE, name)) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult kernel_function(CUfunction *function, CUkernel kernel) {
    const char *name = symbol_of((CUfunction)kernel);
    return name ? GIVE(function, named(FUNCTION, name)) : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult name_of(const char **name, CUfunction function, uint32_t magic) {
    return function && function->magic == magic ? GIVE(name, function->name) : CUDA_ERROR_INVALID_HANDLE;
}

static char module;

API2(cuModuleLoadData, WORK, CUmodule *, module_, const void *, image, GIVE(module_, (CUmodule)(void *)&module))
API1(cuModuleUnload, WORK, CUmodule, hmod, CUDA_SUCCESS)
API3(cuModuleGetFunction, WORK, CUfunction *, hfunc, CUmodule, hmod, const char *, name, function_get(hfunc, name))
API3(cuLibraryGetKernel, INITIALISED, CUkernel *, pKernel, CUlibrary, library, const char *, name,
     kernel_get(pKernel, name))
API2(cuKernelGetFunction, WORK, CUfunction *, pFunc, CUkernel, kernel, kernel_function(pFunc, kernel))
API2(cuFuncGetName, INITIALISED, const char **, name, CUfunction, hfunc, name_of(name, hfunc, FUNCTION))
API2(cuKernelGetName, INITIALISED, const char **, name, CUkernel, hfunc,
     name_of(name, (CUfunction)hfunc, KERNEL_HANDLE))

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                  void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                  void **libraryOptionValues, unsigned int numLibraryOptions)
    CALL(cuLibraryLoadData, INITIALISED, NULL,
         P(CUlibrary *library; const void *code; CUjit_option * jitOptions; void **jitOptionsValues;
           unsigned int numJitOptions; CUlibraryOption *libraryOptions; void **libraryOptionValues;
           unsigned int numLibraryOptions;),
         P(library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions, libraryOptionValues,
           numLibraryOptions),
         GIVE(library, (CUlibrary)(void *)&module))

static CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, bool per_thread,
                       void **parameters) {
    CUresult result = resolve(&stream, per_thread);
    if (result) return result;
    const char *name = symbol_of(function);
    if (!name) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->context != stack[depth]) return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || !threads || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.kind = KERNEL, .name = name};
    if (parameters) {
        CUdeviceptr word;
        memcpy(&work.microseconds, parameters[0], sizeof work.microseconds);
        memcpy(&word, parameters[1], sizeof word);
        work.word = DEVICE(word);
    }
    return enqueue(stream, &work, true, NULL);
}

#define LAUNCH(api, per_thread)                                                                                      \
    EXPORT CUresult api(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,           \
                         unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,                      \
                         unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)            \
        CALL(api, WORK, symbol_of(f),                                                                                \
             P(CUfunction f; unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,              \
               sharedMemBytes; CUstream hStream; void **kernelParams; void **extra;),                                 \
             P(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream,             \
               kernelParams, extra),                                                                                  \
             launch(f, gridDimX * gridDimY * gridDimZ, blockDimX * blockDimY * blockDimZ, hStream, per_thread,        \
                    kernelParams))
LAUNCH(cuLaunchKernel, false)
LAUNCH(cuLaunchKernel_ptsz, true)

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                          unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                          unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                          void **kernelParams)
    CALL(cuLaunchCooperativeKernel, WORK, symbol_of(f),
         P(CUfunction f; unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
           CUstream hStream; void **kernelParams;),
         P(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream, kernelParams),
         launch(f, gridDimX * gridDimY * gridDimZ, blockDimX * blockDimY * blockDimZ, hStream, false, kernelParams))

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction function, void **parameters, bool per_thread) {
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    return launch(function, c->gridDimX * c->gridDimY * c->gridDimZ, c->blockDimX * c->blockDimY * c->blockDimZ,
                  c->hStream, per_thread, parameters);
}

#define LAUNCH_EX(api, per_thread)                                                                                   \
    EXPORT CUresult api(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)               \
        CALL(api, WORK, symbol_of(f), P(const CUlaunchConfig *config; CUfunction f; void **kernelParams;             \
                                         void **extra;),                                                              \
             P(config, f, kernelParams, extra), launch_ex(config, f, kernelParams, per_thread))
LAUNCH_EX(cuLaunchKernelEx, false)
LAUNCH_EX(cuLaunchKernelEx_ptsz, true)

// ---- Graphs ----

static CUgraph graph_new(void) {
    CUgraph graph = graphs;
    while (graph && !graph->destroyed) graph = graph->next;
    if (!graph) {
        graph = calloc(1, sizeof *graph);
        graph->next = graphs;
        graphs = graph;
    }
    graph->destroyed = false;
    graph->first = NULL;
    graph->last = &graph->first;
    graph->count = 0;
    return graph;
}

static CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    if (stream == &stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (capturing(stream)) return CUDA_ERROR_INVALID_VALUE;
    struct capture *capture = calloc(1, sizeof *capture);
    capture->id = ++capture_ids;
    capture->context = stream->context;
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->graph = graph_new();
    capture->next = captures;
    captures = capture;
    stream->place = (struct place){.capture = capture};
    return CUDA_SUCCESS;
}

static void reach(CUgraphNode node) {
    if (node->reached) return;
    node->reached = true;
    for (size_t i = 0; i < node->after_count; i++) reach(node->after[i]);
}

static CUresult capture_end(CUstream stream, CUgraph *graph) {
    if (graph) *graph = NULL;
    CUresult result = resolve(&stream, false);
    if (result) return result;
    struct capture *capture = capturing(stream);
    if (!capture) return CUDA_ERROR_INVALID_VALUE;
    if (capture->origin != stream) return invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    for (size_t i = 0; i < stream->place.count; i++) reach(stream->place.after[i]);
    bool joined = true;
    for (CUgraphNode node = capture->graph->first; node; node = node->next) joined = joined && node->reached;
    capture->ended = true;
    for (CUstream other = stream->context->streams; other; other = other->next) {
        if (other->place.capture == capture) other->place = (struct place){.capture = NULL};
    }
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    return GIVE(graph, capture->graph);
}

static CUresult capture_status(CUstream stream, CUstreamCaptureStatus *status) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    struct capture *c = capturing(stream);
    return GIVE(status, !c ? CU_STREAM_CAPTURE_STATUS_NONE
                          : c->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                             const CUgraphNode **after, size_t *count) {
    CUresult result = capture_status(stream, status);
    if (result || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return result;
    resolve(&stream, false);
    if (id) *id = capturing(stream)->id;
    if (graph) *graph = capturing(stream)->graph;
    if (after) *after = stream->place.after;
    if (count) *count = stream->place.count;
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph) {
    if (!exec || !graph || graph->destroyed) return CUDA_ERROR_INVALID_VALUE;
    *exec = execs;
    while (*exec && !(*exec)->destroyed) *exec = (*exec)->next;
    if (!*exec) {
        *exec = calloc(1, sizeof **exec);
        (*exec)->next = execs;
        execs = *exec;
    }
    (*exec)->destroyed = false;
    (*exec)->launched = NULL;
    (*exec)->nodes = calloc(graph->count + 1, sizeof *(*exec)->nodes); // replays of the old one may still use theirs
    (*exec)->count = 0;
    for (CUgraphNode node = graph->first; node; node = node->next) (*exec)->nodes[(*exec)->count++] = node->work;
    return CUDA_SUCCESS;
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return instantiate(exec, graph);
}

static CUresult graph_launch(CUgraphExec exec, CUstream stream) {
    CUresult result = resolve(&stream, false);
    if (result) return result;
    if (!exec || exec->destroyed) return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.kind = GRAPH, .nodes = exec->nodes, .count = exec->count};
    if (capturing(stream)) return CUDA_ERROR_NOT_SUPPORTED; // of the fake: a graph within a graph
    // A launch comes after all earlier ones of the same executable graph, in whatever stream.
    if (exec->launched && exec->launched != stream && exec->launched->completed < exec->until) {
        append(stream, &(struct work){.kind = WAIT, .stream = exec->launched, .until = exec->until});
    }
    result = enqueue(stream, &work, true, NULL);
    if (!result) (exec->launched = stream, exec->until = stream->enqueued);
    return result;
}

static CUresult graph_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    if (!graph || graph->destroyed || !count) return CUDA_ERROR_INVALID_VALUE;
    size_t n = 0;
    for (CUgraphNode node = graph->first; node; node = node->next, n++) {
        if (nodes && n < *count) nodes[n] = node;
    }
    for (size_t i = n; nodes && i < *count; i++) nodes[i] = NULL;
    *count = n;
    return CUDA_SUCCESS;
}

static CUgraphNodeType node_type(CUgraphNode node) {
    switch (node->work.kind) {
    case KERNEL: return CU_GRAPH_NODE_TYPE_KERNEL;
    case COPY: return CU_GRAPH_NODE_TYPE_MEMCPY;
    case SET: return CU_GRAPH_NODE_TYPE_MEMSET;
    case WRITE: return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    case HOST: return CU_GRAPH_NODE_TYPE_HOST;
    default: return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

API2(cuStreamBeginCapture_v2, WORK, CUstream, hStream, CUstreamCaptureMode, mode, capture_begin(hStream, mode))
API2(cuStreamEndCapture, WORK, CUstream, hStream, CUgraph *, phGraph, capture_end(hStream, phGraph))
API2(cuStreamIsCapturing, WORK, CUstream, hStream, CUstreamCaptureStatus *, captureStatus,
     capture_status(hStream, captureStatus))
API1(cuThreadExchangeStreamCaptureMode, INITIALISED, CUstreamCaptureMode *, mode, exchange_mode(mode))

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                          cuuint64_t *id_out, CUgraph *graph_out,
                                          const CUgraphNode **dependencies_out, size_t *numDependencies_out)
    CALL(cuStreamGetCaptureInfo_v2, WORK, NULL,
         P(CUstream hStream; CUstreamCaptureStatus * captureStatus_out; cuuint64_t * id_out; CUgraph * graph_out;
           const CUgraphNode **dependencies_out; size_t *numDependencies_out;),
         P(hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out),
         capture_info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out))

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                          cuuint64_t *id_out, CUgraph *graph_out,
                                          const CUgraphNode **dependencies_out, const CUgraphEdgeData **edgeData_out,
                                          size_t *numDependencies_out)
    CALL(cuStreamGetCaptureInfo_v3, WORK, NULL,
         P(CUstream hStream; CUstreamCaptureStatus * captureStatus_out; cuuint64_t * id_out; CUgraph * graph_out;
           const CUgraphNode **dependencies_out; const CUgraphEdgeData **edgeData_out; size_t *numDependencies_out;),
         P(hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out, numDependencies_out),
         (edgeData_out ? (void)(*edgeData_out = NULL) : (void)0,
          capture_info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out)))

API3(cuGraphInstantiateWithFlags, WORK, CUgraphExec *, phGraphExec, CUgraph, hGraph, unsigned long long, flags,
     instantiate(phGraphExec, hGraph))
API3(cuGraphInstantiateWithParams, WORK, CUgraphExec *, phGraphExec, CUgraph, hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *,
     instantiateParams, instantiate_with(phGraphExec, hGraph, instantiateParams))
API2(cuGraphUpload, WORK, CUgraphExec, hGraphExec, CUstream, hStream, CUDA_SUCCESS)
API2(cuGraphLaunch, WORK, CUgraphExec, hGraphExec, CUstream, hStream, graph_launch(hGraphExec, hStream))
API1(cuGraphExecDestroy, INITIALISED, CUgraphExec, hGraphExec,
     hGraphExec && !hGraphExec->destroyed ? (hGraphExec->destroyed = true, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE)
API1(cuGraphDestroy, INITIALISED, CUgraph, hGraph,
     hGraph && !hGraph->destroyed ? (hGraph->destroyed = true, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE)
API3(cuGraphGetNodes, INITIALISED, CUgraph, hGraph, CUgraphNode *, nodes, size_t *, numNodes,
     graph_nodes(hGraph, nodes, numNodes))
API2(cuGraphNodeGetType, INITIALISED, CUgraphNode, hNode, CUgraphNodeType *, type,
     hNode ? GIVE(type, node_type(hNode)) : CUDA_ERROR_INVALID_VALUE)

// ---- Errors, and the way to all of it ----

#define ERRORS(X)                                                                                                     \
    X(CUDA_SUCCESS, "no error")                                                                                       \
    X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                                   \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                                      \
    X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                             \
    X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                                               \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                            \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                           \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                           \
    X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                                 \
    X(CUDA_ERROR_NOT_READY, "device not ready")                                                                       \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                                         \
    X(CUDA_ERROR_ASSERT, "device-side assert triggered")                                                              \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")                                       \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                                            \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space")                     \
    X(CUDA_ERROR_INVALID_PC, "invalid program counter")                                                               \
    X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                                         \
    X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                            \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")                      \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")               \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences")             \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began")                    \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                                       \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream")                 \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream") \
    X(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream")           \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread") \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

static CUresult error_name(CUresult error, const char **text) {
    switch (error) {
#define X(code, words) case code: return GIVE(text, #code);
        ERRORS(X)
#undef X
    default: return text ? (*text = NULL, CUDA_ERROR_INVALID_VALUE) : CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult error_string(CUresult error, const char **text) {
    switch (error) {
#define X(code, words) case code: return GIVE(text, words);
        ERRORS(X)
#undef X
    default: return text ? (*text = NULL, CUDA_ERROR_INVALID_VALUE) : CUDA_ERROR_INVALID_VALUE;
    }
}

API2(cuGetErrorName, ANYWHERE, CUresult, error, const char **, pStr, error_name(error, pStr))
API2(cuGetErrorString, ANYWHERE, CUresult, error, const char **, pStr, error_string(error, pStr))

// Newest first. The name that is asked for has no suffix.
static CUresult find(const char *symbol, void **function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status) {
    if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
    const char *suffixes[] = {"_ptsz", version >= 13000 ? "_v4" : "_v2", version >= 12030 ? "_v3" : "_v2", "_v2", ""};
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    *function = NULL;
    for (size_t i = per_thread ? 0 : 1; i < sizeof suffixes / sizeof *suffixes && !*function; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
        Dl_info own;
        void *library = dladdr((void *)(uintptr_t)find, &own) ? dlopen(own.dli_fname, RTLD_NOLOAD | RTLD_NOW) : NULL;
        if (library) *function = dlsym(library, name);
        if (library) dlclose(library);
    }
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *symbolStatus)
    CALL(cuGetProcAddress_v2, ANYWHERE, NULL,
         P(const char *symbol; void **pfn; int cudaVersion; cuuint64_t flags;
           CUdriverProcAddressQueryResult * symbolStatus;),
         P(symbol, pfn, cudaVersion, flags, symbolStatus), find(symbol, pfn, cudaVersion, flags, symbolStatus))

// ---- The fake's own ----

EXPORT void fakeSetTracer(fake_tracer to) { atomic_store(&tracer, to); }
EXPORT uint64_t fakeLastOrdinal(void) { return last_ordinal; }
