/* Moves chunks past the processor's caches, and takes the XXH3-128 of each from the very registers that are stored.

   An ordinary copy reads the memory that it is about to overwrite. A chunk of a checkpoint is not looked at again soon,
   so it is stored around the caches: that halves the time of a capture, and leaves the caches to the training. The
   checksum is free then: the loop waits for memory anyway.

   XXH3 is specified at https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md; only its way for inputs of more
   than 240 bytes is here, without a seed. The tests compare it with the library for every length up to some thousands. */

#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <immintrin.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#ifndef __x86_64__
#error "only for x86-64: elsewhere holdfast works without"
#endif

#define FAST __attribute__((target("avx2")))

enum {
    LINE = 64,   /* of the cache */
    STRIPE = 64, /* of XXH3 */
    STRIPES_IN_BLOCK = 16, /* (192 - 64) / 8 */
    SECRET = 192,
    SHORTEST = 241,
    DIGITS = 32,
    BOUNCE = 4096,    /* stays in the first cache */
    AHEAD = 1024,     /* how far before its use memory is asked for */
    LEAST_STREAMED = 256,
};

typedef struct {
    uint8_t *begin;
    size_t size;
} Part;

/* ---- XXH3-128 ---- */

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static const uint64_t prime32_1 = 0x9E3779B1, prime32_2 = 0x85EBCA77, prime32_3 = 0xC2B2AE3D;
static const uint64_t prime64_1 = 0x9E3779B185EBCA87, prime64_2 = 0xC2B2AE3D27D4EB4F, prime64_3 = 0x165667B19E3779F9;
static const uint64_t prime64_4 = 0x85EBCA77C2B2AE63, prime64_5 = 0x27D4EB2F165667C5, prime_mx1 = 0x165667919E3779F9;

typedef struct {
    __m256i low, high;     /* the eight accumulators */
    unsigned stripe;       /* of the block */
} Sum;

FAST static inline __m256i at(const void *memory) { return _mm256_loadu_si256((const __m256i *)memory); }

FAST static inline __m256i accumulated(__m256i sum, __m256i data, const uint8_t *key_at)
{
    __m256i key = _mm256_xor_si256(data, at(key_at));
    __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
    return _mm256_add_epi64(sum, _mm256_add_epi64(product, _mm256_shuffle_epi32(data, 0x4E)));
}

FAST static inline __m256i scrambled(__m256i sum, const uint8_t *key_at)
{
    const __m256i prime = _mm256_set1_epi32((int)0x9E3779B1);
    __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47)), at(key_at));
    __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(upper, 32));
}

FAST static inline void add_stripe(Sum *sum, __m256i low, __m256i high)
{
    const uint8_t *key_at = secret + 8 * sum->stripe;
    sum->low = accumulated(sum->low, low, key_at);
    sum->high = accumulated(sum->high, high, key_at + 32);
    if (++sum->stripe == STRIPES_IN_BLOCK) {
        sum->stripe = 0;
        sum->low = scrambled(sum->low, secret + SECRET - STRIPE);
        sum->high = scrambled(sum->high, secret + SECRET - STRIPE + 32);
    }
}

FAST static Sum begun(void)
{
    const uint64_t start[8] = {prime32_3, prime64_1, prime64_2, prime64_3, prime64_4, prime32_2, prime64_5, prime32_1};
    return (Sum){at(start), at(start + 4), 0};
}

static uint64_t word_at(const uint8_t *memory)
{
    uint64_t word;
    memcpy(&word, memory, sizeof word);
    return word;
}

static uint64_t merged(const uint64_t *sums, const uint8_t *key_at, uint64_t start)
{
    for (int i = 0; i < 8; i += 2) {
        __uint128_t product = (__uint128_t)(sums[i] ^ word_at(key_at + 8 * i)) * (sums[i + 1] ^ word_at(key_at + 8 * i + 8));
        start += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    start ^= start >> 37;
    start *= prime_mx1;
    return start ^ (start >> 32);
}

/* `last` are the last 64 bytes of all. */
FAST static void finished(Sum sum, const uint8_t *last, size_t size, char *digits)
{
    uint64_t sums[8];
    sum.low = accumulated(sum.low, at(last), secret + SECRET - STRIPE - 7);
    sum.high = accumulated(sum.high, at(last + 32), secret + SECRET - STRIPE - 7 + 32);
    _mm256_storeu_si256((__m256i *)sums, sum.low);
    _mm256_storeu_si256((__m256i *)(sums + 4), sum.high);
    uint64_t words[2] = {
        merged(sums, secret + SECRET - STRIPE - 11, ~(size * prime64_2)),
        merged(sums, secret + 11, size * prime64_1),
    };
    for (int i = 0; i < 32; i++)
        digits[i] = "0123456789abcdef"[(words[i / 16] >> (60 - 4 * (i % 16))) & 15];
}

/* How many bytes come before the last stripe that is added in the ordinary way. That one and the rest, 65 to 128
   bytes, are put into a buffer of our own first: the last 64 bytes of all are added once more. */
static size_t body_of(size_t size) { return ((size - 1) / STRIPE - 1) * STRIPE; }

/* ---- gather: several parts into one target ---- */

typedef struct {
    const Part *part;
    size_t offset;
} Cursor;

/* The next bytes, from as many parts as it takes. */
static void take(Cursor *from, uint8_t *into, size_t size)
{
    while (size) {
        size_t left = from->part->size - from->offset, count = left < size ? left : size;
        memcpy(into, from->part->begin + from->offset, count);
        into += count;
        size -= count;
        from->offset += count;
        if (from->offset == from->part->size) {
            from->part++;
            from->offset = 0;
        }
    }
}

FAST static void store(uint8_t *into, __m256i low, __m256i high, int streamed)
{
    if (streamed) {
        _mm256_stream_si256((__m256i *)into, low);
        _mm256_stream_si256((__m256i *)(into + 32), high);
    } else {
        _mm256_storeu_si256((__m256i *)into, low);
        _mm256_storeu_si256((__m256i *)(into + 32), high);
    }
}

/* The next chunk; `source_at` is where the one after it begins then. */
FAST static void gather(uint8_t *target, size_t size, Cursor *source_at, int is_kept, char *digits)
{
    Sum sum = begun();
    Cursor from = *source_at;
    uint8_t tail[2 * STRIPE];
    const int streamed = !is_kept && (uintptr_t)target % LINE == 0;
    size_t done = 0;
    const size_t body = body_of(size);
    while (done < body) {
        while (from.offset == from.part->size)
            from = (Cursor){from.part + 1, 0};
        size_t run = from.part->size - from.offset;
        run = (run < body - done ? run : body - done) & ~(size_t)(STRIPE - 1);
        const uint8_t *source = from.part->begin + from.offset;
        for (size_t i = 0; i < run; i += STRIPE) {
            _mm_prefetch((const char *)source + i + AHEAD, _MM_HINT_T0);
            __m256i low = at(source + i), high = at(source + i + 32);
            store(target + done + i, low, high, streamed);
            add_stripe(&sum, low, high);
        }
        from.offset += run;
        done += run;
        if (run == 0) { /* a stripe that lies in several parts */
            take(&from, tail, STRIPE);
            store(target + done, at(tail), at(tail + 32), streamed);
            add_stripe(&sum, at(tail), at(tail + 32));
            done += STRIPE;
        }
    }
    take(&from, tail, size - done);
    memcpy(target + done, tail, size - done);
    add_stripe(&sum, at(tail), at(tail + 32));
    finished(sum, tail + (size - done) - STRIPE, size, digits);
    *source_at = from;
    _mm_sfence();
}

/* ---- scatter: one source into several parts ---- */

/* To a place at the start of a line: whole lines past the caches, what is left of the last one through them. */
FAST static void stream_lines(uint8_t *target, const uint8_t *source, size_t size)
{
    size_t done = 0;
    for (; done + LINE <= size; done += LINE)
        store(target + done, at(source + done), at(source + done + 32), 1);
    memcpy(target + done, source + done, size - done);
}

FAST static void stream(uint8_t *target, const uint8_t *source, size_t size)
{
    size_t head = size < LEAST_STREAMED ? size : -(uintptr_t)target & (LINE - 1);
    memcpy(target, source, head);
    stream_lines(target + head, source + head, size - head);
}

/* Put these bytes where they go, in as many parts as it takes; how many were put. Up to a line's worth is left for the
   next time, unless it is the end: a line of memory that is stored in two pieces costs several times as much. */
static size_t put(Cursor *into, const uint8_t *source, size_t size, int is_end)
{
    size_t done = 0;
    while (done < size) {
        uint8_t *target = into->part->begin + into->offset;
        size_t left = into->part->size - into->offset, count = size - done;
        if (count >= left)
            count = left;
        else if (!is_end) {
            size_t beyond = ((uintptr_t)target + count) & (LINE - 1);
            if (count <= beyond)
                break;
            count -= beyond;
        }
        stream(target, source + done, count);
        done += count;
        into->offset += count;
        if (into->offset == into->part->size)
            *into = (Cursor){into->part + 1, 0};
        else
            break; /* what is left fills no line */
    }
    return done;
}

/* Every byte of the source is read once: what is checked is what is stored, whatever others do to the source. */
FAST static void scatter(const uint8_t *source, size_t size, Cursor *into, char *digits)
{
    Sum sum = begun();
    uint8_t bounce[LINE + BOUNCE + 2 * STRIPE] __attribute__((aligned(64)));
    size_t done = 0, held = 0;
    const size_t body = body_of(size);
    while (done < body) {
        size_t count = body - done < BOUNCE ? body - done : BOUNCE;
        for (size_t i = 0; i < count; i += STRIPE) {
            _mm_prefetch((const char *)source + done + i + AHEAD, _MM_HINT_T0);
            __m256i low = at(source + done + i), high = at(source + done + i + 32);
            store(bounce + held + i, low, high, 0);
            add_stripe(&sum, low, high);
        }
        done += count;
        count += held;
        size_t taken = put(into, bounce, count, 0);
        held = count - taken;
        memmove(bounce, bounce + taken, held);
    }
    const size_t rest = size - done;
    memcpy(bounce + held, source + done, rest);
    add_stripe(&sum, at(bounce + held), at(bounce + held + 32));
    finished(sum, bounce + held + rest - STRIPE, size, digits);
    put(into, bounce, held + rest, 1);
    _mm_sfence();
}

/* ---- a source that may vanish ---- */

/* A mapped file that is cut short, or that the disk cannot read, ends the process with SIGBUS. While a source is read
   it ends the reading instead; a fault at any other place is none of our business. */

typedef struct {
    const uint8_t *begin, *end;
    sigjmp_buf back;
} Landing;

static __thread Landing *volatile landing __attribute__((tls_model("initial-exec")));
static struct sigaction action_before;
static int guarding; /* changed with the interpreter's lock held */

static void on_fault(int number, siginfo_t *info, void *context)
{
    const uint8_t *address = info->si_addr;
    const int is_sent = info->si_code <= 0; /* by a process, which gives no address */
    if (!is_sent && landing && address >= landing->begin && address < landing->end)
        siglongjmp(landing->back, 1);
    if (action_before.sa_flags & SA_SIGINFO)
        action_before.sa_sigaction(number, info, context);
    else if (action_before.sa_handler != SIG_DFL && action_before.sa_handler != SIG_IGN)
        action_before.sa_handler(number);
    else if (!is_sent || action_before.sa_handler == SIG_DFL) {
        signal(number, SIG_DFL); /* the fault comes again, and ends the process as it would have */
        if (is_sent)
            raise(number);
    }
}

static int is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_fault;
}

/* The program may set a handler of its own at any time, in another thread: it is asked for, not remembered. */
static void guard(void)
{
    struct sigaction found;
    guarding++;
    if (sigaction(SIGBUS, NULL, &found) == 0 && !is_ours(&found)) {
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
        sigemptyset(&action.sa_mask);
        action_before = found;
        sigaction(SIGBUS, &action, NULL);
    }
}

static void unguard(void)
{
    struct sigaction found;
    if (--guarding == 0 && sigaction(SIGBUS, NULL, &found) == 0 && is_ours(&found))
        sigaction(SIGBUS, &action_before, NULL);
}

/* Chunk after chunk, the last one may be shorter; whether the whole source could be read. */
static int scatter_guarded(const uint8_t *source, size_t size, size_t chunk, const Part *parts, char *digits)
{
    Landing here = {.begin = source, .end = source + size};
    Cursor into = {parts, 0};
    if (sigsetjmp(here.back, 0)) {
        landing = NULL;
        return 0;
    }
    landing = &here;
    for (size_t done = 0; done < size; done += chunk)
        scatter(source + done, size - done < chunk ? size - done : chunk, &into, digits + done / chunk * DIGITS);
    landing = NULL;
    return 1;
}

/* ---- for Python ---- */

typedef struct {
    Py_buffer *buffers;
    Part *parts;
    Py_ssize_t count;
} Parts;

static void release(Parts *parts)
{
    for (Py_ssize_t i = 0; i < parts->count; i++)
        PyBuffer_Release(&parts->buffers[i]);
    PyMem_Free(parts->buffers);
    PyMem_Free(parts->parts);
}

/* The memory of all of them; 0 with an exception where one has none, or they are not of that size in all. */
static int acquire(PyObject *sequence, int flags, Py_ssize_t size, Parts *parts)
{
    Py_ssize_t length = PySequence_Size(sequence), sum = 0;
    if (length < 0)
        return 0;
    *parts = (Parts){PyMem_Calloc(length + 1, sizeof(Py_buffer)), PyMem_Calloc(length + 1, sizeof(Part)), 0};
    if (!parts->buffers || !parts->parts) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        if (!item)
            goto failed;
        Py_buffer *buffer = &parts->buffers[i];
        int found = PyObject_GetBuffer(item, buffer, flags);
        Py_DECREF(item);
        if (found < 0)
            goto failed;
        parts->count = i + 1;
        parts->parts[i] = (Part){buffer->buf, (size_t)buffer->len};
        sum += buffer->len;
    }
    if (sum == size)
        return 1;
    PyErr_Format(PyExc_ValueError, "the parts have %zd bytes, the chunk has %zd", sum, size);
failed:
    release(parts);
    return 0;
}

static PyObject *py_gather(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer target;
    PyObject *sequence;
    Parts parts;
    char digits[32];
    int is_kept = 0;
    if (!PyArg_ParseTuple(arguments, "w*O|p", &target, &sequence, &is_kept))
        return NULL;
    if (target.len < SHORTEST) {
        PyErr_Format(PyExc_ValueError, "a chunk of %zd bytes is too short", target.len);
        PyBuffer_Release(&target);
        return NULL;
    }
    if (!acquire(sequence, PyBUF_SIMPLE, target.len, &parts)) {
        PyBuffer_Release(&target);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    Cursor from = {parts.parts, 0};
    gather(target.buf, (size_t)target.len, &from, is_kept, digits);
    Py_END_ALLOW_THREADS
    release(&parts);
    PyBuffer_Release(&target);
    return PyUnicode_FromStringAndSize(digits, sizeof digits);
}

static PyObject *list_of_sums(const char *digits, Py_ssize_t count)
{
    PyObject *sums = PyList_New(count);
    for (Py_ssize_t i = 0; sums && i < count; i++) {
        PyObject *sum = PyUnicode_FromStringAndSize(digits + DIGITS * i, DIGITS);
        if (!sum || PyList_SetItem(sums, i, sum) < 0)
            Py_CLEAR(sums);
    }
    return sums;
}

static PyObject *py_gather_chunks(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer target;
    PyObject *sequence, *sums = NULL;
    Parts parts;
    Py_ssize_t chunk_size;
    if (!PyArg_ParseTuple(arguments, "w*On", &target, &sequence, &chunk_size))
        return NULL;
    if (chunk_size < SHORTEST || (target.len % chunk_size && target.len % chunk_size < SHORTEST)) {
        PyErr_Format(PyExc_ValueError, "chunks of %zd bytes, %zd in all: one is too short", chunk_size, target.len);
        PyBuffer_Release(&target);
        return NULL;
    }
    const Py_ssize_t count = target.len / chunk_size + (target.len % chunk_size != 0);
    char *digits = PyMem_Calloc(count + 1, DIGITS);
    if (!digits)
        PyErr_NoMemory();
    else if (acquire(sequence, PyBUF_SIMPLE, target.len, &parts)) {
        Py_BEGIN_ALLOW_THREADS
        Cursor from = {parts.parts, 0};
        for (Py_ssize_t i = 0; i < count; i++) {
            const Py_ssize_t done = i * chunk_size, left = target.len - done;
            gather((uint8_t *)target.buf + done, (size_t)(left < chunk_size ? left : chunk_size), &from, 0,
                   digits + DIGITS * i);
        }
        Py_END_ALLOW_THREADS
        release(&parts);
        sums = list_of_sums(digits, count);
    }
    PyMem_Free(digits);
    PyBuffer_Release(&target);
    return sums;
}

static PyObject *py_scatter(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer source;
    PyObject *sequence, *sums = NULL;
    Parts parts;
    Py_ssize_t chunk;
    int whole;
    if (!PyArg_ParseTuple(arguments, "y*On", &source, &sequence, &chunk))
        return NULL;
    const Py_ssize_t last = chunk > 0 && source.len ? (source.len - 1) % chunk + 1 : source.len;
    const Py_ssize_t count = chunk > 0 ? (source.len - last) / chunk + 1 : 1;
    if (chunk < SHORTEST || last < SHORTEST) {
        PyErr_Format(PyExc_ValueError, "a chunk of %zd bytes is too short", chunk < SHORTEST ? chunk : last);
        PyBuffer_Release(&source);
        return NULL;
    }
    char *digits = PyMem_Malloc(DIGITS * count);
    if (!digits)
        PyErr_NoMemory();
    else if (acquire(sequence, PyBUF_WRITABLE, source.len, &parts)) {
        guard();
        Py_BEGIN_ALLOW_THREADS
        whole = scatter_guarded(source.buf, (size_t)source.len, (size_t)chunk, parts.parts, digits);
        Py_END_ALLOW_THREADS
        unguard();
        release(&parts);
        sums = whole ? list_of_sums(digits, count) : Py_NewRef(Py_None);
    }
    PyMem_Free(digits);
    PyBuffer_Release(&source);
    return sums;
}

static PyMethodDef methods[] = {
    {"gather", py_gather, METH_VARARGS,
     "Copy the parts, one after the other, into the target, and into the caches if it is to be kept there; its XXH3-128."},
    {"gather_chunks", py_gather_chunks, METH_VARARGS,
     "Copy the parts, one after the other, into the target, past the caches; the XXH3-128 of each chunk of that size in it."},
    {"scatter", py_scatter, METH_VARARGS,
     "Copy the source into the parts, one after the other; the XXH3-128 of each of its chunks of that size, or None where "
     "some of it cannot be read."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_streams", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__streams(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2")) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2");
        return NULL;
    }
    return PyModule_Create(&module);
}
