/* A stand-in for the chip's executor on a PC: it reads packages in a private format, and computes nothing itself.
 *
 * With a callback (`standin_compute`) every tForward calls it, and the simulator computes the outputs. Without one,
 * tForward replays the calls in the package: it searches the call with the same inputs, byte for byte, and returns its
 * outputs. If there is none, it prints the first byte that differs from the next call, and fails.
 *
 * A package consists of little-endian words of 32 bits:
 *   "LNGRPLAY", chip (12 bytes), package index, bytes of shared memory, bytes of psram, inputs, outputs, calls,
 *   whether shared memory contains constants;
 *   per port: type, rank, 7 dimensions, scale (float), name (64 bytes, 8 zeros); then call by call all inputs, all
 *   outputs, padded to 8 bytes.
 * Memory is used as on a chip: a call overwrites shared memory except constants, which must still be there in the next
 * call. As the executor does, tCreateExecutor writes 2,968 bytes beyond the PSRAM of a package, and each call needs them.
 * Faults for tests: STANDIN_FAIL="tForward" in the environment makes that call fail; STANDIN_FAIL="names" leaves inputs
 * and outputs without names.
 */
#include "thinker/thinker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORTS 1024
#define PARTS 256
#define HEADER 48
#define PORT_BYTES 112
#define BEYOND_BYTES 2968 /* that the executor writes beyond the PSRAM that it reports, and reads in each call */

typedef struct {
    uint16_t type;
    tShape shape;
    float scale;
    const char *name; /* in the package */
    uint32_t bytes;
} port;

typedef struct {
    const unsigned char *package;
    uint64_t size;
    uint32_t part, inputs, outputs, calls, next, constants;
    port ports[PORTS];
    const void *given[PORTS];
    unsigned char *made[PORTS];
    unsigned char *shared;
    unsigned char *beyond; /* PSRAM beyond the block that the plan reports */
    int open;
} model;

typedef int (*compute)(uint32_t part, const void *const *inputs, void *const *outputs);

static model models[PARTS]; /* of one program or of several */
static compute answer;
static int begun;

void standin_compute(compute with);
void standin_compute(compute with) { answer = with; }

static uint32_t word(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static int fails(const char *call)
{
    const char *which = getenv("STANDIN_FAIL");
    return which != NULL && strcmp(which, call) == 0;
}

static uint32_t padded(uint32_t bytes) { return (bytes + 7) & ~(uint32_t)7; }

static tStatus opened(const int8_t *package, uint64_t size, model *into)
{
    const unsigned char *at = (const unsigned char *)package;
    uint32_t i, d;
    if (package == NULL) return T_ERR_RES_MISSING;
    if ((uintptr_t)package % 64) return T_ERR_INVALID_PARA;
    if (size < HEADER || memcmp(at, "LNGRPLAY", 8) != 0) return T_ERR_RES_INCOMPLETE;
    into->package = at;
    into->size = size;
    into->part = word(at + 20);
    into->inputs = word(at + 32);
    into->outputs = word(at + 36);
    into->calls = word(at + 40);
    into->constants = word(at + 44);
    if (into->inputs + into->outputs > PORTS || into->part >= PARTS) return T_ERR_INVALID_DATA;
    if (size < HEADER + (uint64_t)PORT_BYTES * (into->inputs + into->outputs)) return T_ERR_RES_INCOMPLETE;
    for (i = 0; i < into->inputs + into->outputs; i++) {
        const unsigned char *entry = at + HEADER + PORT_BYTES * i;
        port *p = &into->ports[i];
        p->type = (uint16_t)word(entry);
        p->shape.ndim_ = word(entry + 4);
        p->bytes = p->type & 15u;
        for (d = 0; d < 7; d++) p->shape.dims_[d] = word(entry + 8 + 4 * d);
        for (d = 0; d < p->shape.ndim_ && d < 7; d++) p->bytes *= p->shape.dims_[d];
        memcpy(&p->scale, entry + 36, 4);
        p->name = (const char *)entry + 40;
    }
    return T_SUCCESS;
}

tStatus tInitialize(void)
{
    if (fails("tInitialize") || begun) return T_ERR_FAIL; /* once per process */
    begun = 1;
    return T_SUCCESS;
}
tStatus tUninitialize(void)
{
    begun = 0;
    return T_SUCCESS;
}
const char *tGetVersion(int8_t which)
{
    (void)which;
    return "stand-in";
}

tStatus tGetMemoryPlan(tMemory *list, int32_t *count, const int8_t *package, uint64_t size)
{
    model m;
    tStatus status = opened(package, size, &m);
    if (status != T_SUCCESS) return status;
    if (fails("tGetMemoryPlan")) return T_ERR_FAIL;
    list[0].size_ = word(m.package + 24);
    list[0].dev_type_ = list[0].mem_type_ = 2;
    list[0].dptr_ = 0;
    list[1].size_ = word(m.package + 28);
    list[1].dev_type_ = list[1].mem_type_ = 1;
    list[1].dptr_ = 0;
    *count = 2;
    return T_SUCCESS;
}

tStatus tModelInit(tModelHandle *handle, const int8_t *package, uint64_t size, const tMemory *list, int32_t count)
{
    model m;
    int32_t i;
    uint32_t slot = 0;
    tStatus status;
    memset(&m, 0, sizeof m);
    status = opened(package, size, &m);
    if (status != T_SUCCESS) return status;
    if (fails("tModelInit") || !begun) return T_ERR_FAIL;
    while (slot < PARTS && models[slot].open) slot++;
    if (slot == PARTS) return T_ERR_NO_WORKSPACE;
    for (i = 0; i < count; i++) {
        if (list[i].size_ != 0 && (list[i].dptr_ == 0 || list[i].dptr_ % 64)) return T_ERR_NO_WORKSPACE;
        if (list[i].size_ != 0) memset((void *)(uintptr_t)list[i].dptr_, (int)(m.part % 200), list[i].size_);
        if (list[i].dev_type_ == 2) m.shared = (unsigned char *)(uintptr_t)list[i].dptr_;
    }
    m.open = 1;
    models[slot] = m;
    *handle = (uint64_t)slot + 1;
    return T_SUCCESS;
}

tStatus tModelFini(tModelHandle handle)
{
    models[handle - 1].open = 0;
    return T_SUCCESS;
}

tStatus tCreateExecutor(tModelHandle handle, tExecHandle *executor, const tMemory *list, int32_t count)
{
    model *m = &models[handle - 1];
    uint32_t i;
    int32_t block;
    if (fails("tCreateExecutor")) return T_ERR_FAIL;
    for (block = 0; block < count; block++) {
        if (list[block].dev_type_ != 1 || list[block].dptr_ == 0) continue;
        m->beyond = (unsigned char *)(uintptr_t)list[block].dptr_ + list[block].size_;
        memset(m->beyond, (int)(200 + m->part % 50), BEYOND_BYTES);
    }
    for (i = 0; i < m->outputs; i++) {
        m->made[i] = malloc(m->ports[m->inputs + i].bytes + 1);
        if (m->made[i] == NULL) return T_ERR_NO_WORKSPACE;
    }
    *executor = handle;
    return T_SUCCESS;
}

tStatus tReleaseExecutor(tExecHandle executor)
{
    model *m = &models[executor - 1];
    uint32_t i;
    for (i = 0; i < m->outputs; i++) {
        free(m->made[i]);
        m->made[i] = NULL;
    }
    return T_SUCCESS;
}

int32_t tGetInputCount(tModelHandle handle) { return (int32_t)models[handle - 1].inputs; }
int32_t tGetOutputCount(tModelHandle handle) { return (int32_t)models[handle - 1].outputs; }
const char *tGetInputName(tModelHandle handle, int32_t i) { return fails("names") ? "" : models[handle - 1].ports[i].name; }
const char *tGetOutputName(tModelHandle handle, int32_t i)
{
    return tGetInputName(handle, (int32_t)models[handle - 1].inputs + i);
}
tDType tGetInputDataType(tModelHandle handle, int32_t i) { return models[handle - 1].ports[i].type; }
tDType tGetOutputDataType(tModelHandle handle, int32_t i)
{
    model *m = &models[handle - 1];
    return m->ports[m->inputs + (uint32_t)i].type;
}
tShape tGetInputShape(tModelHandle handle, int32_t i) { return models[handle - 1].ports[i].shape; }
tShape tGetOutputShape(tModelHandle handle, int32_t i)
{
    model *m = &models[handle - 1];
    return m->ports[m->inputs + (uint32_t)i].shape;
}

static void described(const port *p, tData *data)
{
    memset(data, 0, sizeof *data);
    data->dtype_ = p->type;
    data->shape_ = p->shape;
    data->scale_ = p->scale;
}

tStatus tGetInputInfo(tExecHandle executor, int32_t i, tData *data)
{
    model *m = &models[executor - 1];
    if (i < 0 || (uint32_t)i >= m->inputs) return T_ERR_INDEX_OF_BOUND;
    described(&m->ports[i], data);
    return T_SUCCESS;
}

tStatus tSetInput(tExecHandle executor, int32_t i, const tData *data)
{
    model *m = &models[executor - 1];
    if (fails("tSetInput")) return T_ERR_FAIL;
    if (i < 0 || (uint32_t)i >= m->inputs) return T_ERR_INDEX_OF_BOUND;
    if (data->dtype_ != m->ports[i].type) return T_ERR_INVALID_DATATYPE;
    m->given[i] = data->dptr_;
    return T_SUCCESS;
}

/* Return the outputs of the package's call with these inputs; if there is none, print a line and return NULL. */
static const unsigned char *replayed(model *m)
{
    uint32_t call, i, tried, ins = 0, outs = 0, k;
    const unsigned char *first = m->package + HEADER + PORT_BYTES * (m->inputs + m->outputs);
    for (i = 0; i < m->inputs; i++) ins += padded(m->ports[i].bytes);
    for (i = 0; i < m->outputs; i++) outs += padded(m->ports[m->inputs + i].bytes);
    if ((uint64_t)(first - m->package) + (uint64_t)m->calls * (ins + outs) > m->size) return NULL;
    for (tried = 0; tried < m->calls; tried++) {
        const unsigned char *at;
        int same = 1;
        call = (m->next + tried) % m->calls;
        at = first + (uint64_t)call * (ins + outs);
        for (i = 0; i < m->inputs && same; i++) {
            same = memcmp(at, m->given[i], m->ports[i].bytes) == 0;
            at += padded(m->ports[i].bytes);
        }
        if (same) {
            m->next = call + 1;
            return first + (uint64_t)call * (ins + outs) + ins;
        }
    }
    if (m->calls != 0) {
        const unsigned char *at = first + (uint64_t)(m->next % m->calls) * (ins + outs);
        for (i = 0; i < m->inputs; i++) {
            for (k = 0; k < m->ports[i].bytes; k++) {
                if (at[k] != ((const unsigned char *)m->given[i])[k]) {
                    fprintf(stderr, "stand-in: part %u, call %u: byte %u of input %u is %d, expected %d\n",
                            (unsigned)m->part, (unsigned)(m->next % m->calls), (unsigned)k, (unsigned)i,
                            ((const signed char *)m->given[i])[k], (signed char)at[k]);
                    return NULL;
                }
            }
            at += padded(m->ports[i].bytes);
        }
    }
    return NULL;
}

tStatus tForward(tExecHandle executor)
{
    model *m = &models[executor - 1];
    uint32_t i;
    if (fails("tForward") || !m->open || !begun) return T_ERR_FAIL;
    for (i = 0; i < m->inputs; i++) {
        if (m->given[i] == NULL) return T_ERR_INVALID_PARA;
    }
    for (i = 0; m->shared != NULL && m->constants && i < word(m->package + 24); i++) {
        if (m->shared[i] != m->part % 200) {
            fprintf(stderr, "stand-in: part %u: its constants in shared memory were overwritten\n", (unsigned)m->part);
            return T_ERR_INVALID_DATA;
        }
    }
    for (i = 0; m->beyond != NULL && i < BEYOND_BYTES; i++) {
        if (m->beyond[i] != 200 + m->part % 50) {
            fprintf(stderr, "stand-in: part %u: psram beyond its block was overwritten\n", (unsigned)m->part);
            return T_ERR_INVALID_DATA;
        }
    }
    if (m->shared != NULL && !m->constants) memset(m->shared, 0xff, word(m->package + 24));
    if (answer != NULL) {
        if (answer(m->part, m->given, (void *const *)m->made) != 0) return T_ERR_FAIL;
    } else {
        const unsigned char *at = replayed(m);
        if (at == NULL) return T_ERR_INVALID_DATA;
        for (i = 0; i < m->outputs; i++) {
            memcpy(m->made[i], at, m->ports[m->inputs + i].bytes);
            at += padded(m->ports[m->inputs + i].bytes);
        }
    }
    for (i = 0; i < m->inputs; i++) m->given[i] = NULL;
    return T_SUCCESS;
}

tStatus tGetOutput(tExecHandle executor, int32_t i, tData *data)
{
    model *m = &models[executor - 1];
    if (fails("tGetOutput")) return T_ERR_FAIL;
    if (i < 0 || (uint32_t)i >= m->outputs) return T_ERR_INDEX_OF_BOUND;
    described(&m->ports[m->inputs + (uint32_t)i], data);
    data->dptr_ = m->made[i];
    return T_SUCCESS;
}
