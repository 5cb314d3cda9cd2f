/* The calls of the executor that a generated program makes, for the stand-in: see the executor's own header for the
 * real ones. Written from a description of the interface; names, types and values are all that it shares with it. */
#ifndef LINGERONNX_STANDIN_THINKER_H
#define LINGERONNX_STANDIN_THINKER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t tModelHandle;
typedef uint64_t tExecHandle;
typedef uint64_t addr_type;

typedef enum {
    T_SUCCESS = 0,
    T_ERR_FAIL = -1,
    T_ERR_NO_WORKSPACE = 4003,
    T_ERR_INVALID_PLATFROM = 10002,
    T_ERR_RES_MISSING = 20000,
    T_ERR_RES_INCOMPLETE = 20001,
    T_ERR_RES_CRC_CHECK = 20002,
    T_ERR_INVALID_PARA = 30000,
    T_ERR_INVALID_DATA = 30002,
    T_ERR_INDEX_OF_BOUND = 40001,
    T_ERR_INVALID_DATATYPE = 40002
} tStatus;

typedef uint16_t tDType;
enum {
    Bool = 0x6201,
    Float32 = 0x6604,
    Int4 = 0x6900,
    Int8 = 0x6901,
    Int16 = 0x6902,
    Int32 = 0x6904,
    Int64 = 0x6908,
    Uint8 = 0x7501,
    Uint16 = 0x7502,
    Uint32 = 0x7504
};

typedef struct {
    uint32_t ndim_;
    uint32_t dims_[7];
} tShape;

typedef struct {
    void *dptr_;
    uint16_t dev_type_;
    uint16_t dtype_;
    uint16_t zero_;
    float scale_;
    tShape shape_;
} tData;

typedef struct {
    uint32_t size_;
    uint8_t dev_type_;
    uint8_t mem_type_;
    addr_type dptr_;
} tMemory;

tStatus tInitialize(void);
tStatus tUninitialize(void);
tStatus tGetMemoryPlan(tMemory *list, int32_t *count, const int8_t *package, uint64_t size);
tStatus tModelInit(tModelHandle *model, const int8_t *package, uint64_t size, const tMemory *list, int32_t count);
tStatus tModelFini(tModelHandle model);
tStatus tCreateExecutor(tModelHandle model, tExecHandle *executor, const tMemory *list, int32_t count);
tStatus tReleaseExecutor(tExecHandle executor);
int32_t tGetInputCount(tModelHandle model);
int32_t tGetOutputCount(tModelHandle model);
const char *tGetInputName(tModelHandle model, int32_t index);
const char *tGetOutputName(tModelHandle model, int32_t index);
tDType tGetInputDataType(tModelHandle model, int32_t index);
tDType tGetOutputDataType(tModelHandle model, int32_t index);
tShape tGetInputShape(tModelHandle model, int32_t index);
tShape tGetOutputShape(tModelHandle model, int32_t index);
tStatus tGetInputInfo(tExecHandle executor, int32_t index, tData *data);
tStatus tSetInput(tExecHandle executor, int32_t index, const tData *data);
tStatus tForward(tExecHandle executor);
tStatus tGetOutput(tExecHandle executor, int32_t index, tData *data);
const char *tGetVersion(int8_t which);

#ifdef __cplusplus
}
#endif
#endif
