// The interface between Python and kept calls. The library is built without the headers of Python and of PyTorch: it gets
// the addresses of functions of Python's stable ABI and of DLPack's exchange interface, so one build serves every version.
#pragma once
#include "regard_native.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RG_OPTIONS 13  // arguments of a call after q, k and v
#define RG_QUIET 4     // functions that are asked before every call

typedef struct rg_object rg_object;  // PyObject

// A tensor as DLPack 1 describes it: DLTensor.
typedef struct {
  void *data;
  int32_t device, device_number;
  int32_t axes;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *size, *stride;
  uint64_t offset;  // in bytes
} rg_described;

// Functions of Python, by their names there, and objects, of which the caller holds a reference for ever.
typedef struct {
  rg_object *(*PyCFunction_NewEx)(const void *, rg_object *, rg_object *);
  rg_object *(*PyObject_CallNoArgs)(rg_object *);
  rg_object *(*PyObject_CallFunctionObjArgs)(rg_object *, ...);
  rg_object *(*PyObject_Call)(rg_object *, rg_object *, rg_object *);
  rg_object *(*PyObject_GetAttr)(rg_object *, rg_object *);
  int (*PyObject_IsTrue)(rg_object *);
  int (*PyObject_RichCompareBool)(rg_object *, rg_object *, int);
  long (*PyLong_AsLong)(rg_object *);
  int (*PyErr_ExceptionMatches)(rg_object *);
  void (*PyErr_Clear)(void);
  void (*Py_IncRef)(rg_object *);
  void (*Py_DecRef)(rg_object *);
  void *(*PyEval_SaveThread)(void);
  void (*PyEval_RestoreThread)(void *);
  int (*describe)(void *, rg_described *);  // of DLPack: 0, or -1 with an exception of Python

  rg_object *none, *unknown, *any_exception;
  rg_object *tensor, *integer;           // the classes torch.Tensor and int
  rg_object *is_cpu, *requires_grad;     // names of attributes
  rg_object *is_neg;                     // functions of a tensor: whether numbers are the negatives of those in memory,
  rg_object *has_no_memory[2];           // and whether there is no memory
  rg_object *empty_strided, *get_num_threads, *is_grad_enabled;
  rg_object *transforms, *function_modes;  // return None outside of torch.func, and whether a mode sees functions of tensors
  rg_object *quiet[RG_QUIET];            // return None, False or 0 where nothing looks at a call or changes it
  rg_object *is_included, *before_autograd;  // whether a dispatch key is included, and the one of tracers
  rg_object *forward_mode, *level;       // a module and the name of its number, below 0 outside of forward-mode derivatives
} rg_python;

// Calls of few queries that differ from a kept one in the number of keys, the strides of k and v from row to row of a batch
// and from head to head, and the position of the first query, as the steps of a text do. A query looks at the keys of one
// window, within a span of all keys.
typedef struct {
  int32_t least_keys, most_keys;
  int64_t left, right;                  // a query at position p looks at p - left <= key <= p + right; RG_NO_LIMIT: no limit
  int64_t start, stop;                  // of the span
  int64_t products_per_key, products_per_thread;  // for the number of threads
} rg_growth;

// A call to keep.
typedef struct {
  rg_object *argument[3 + RG_OPTIONS];  // tensors like which others may be, and options
  rg_object *memory;                    // all that `call` points at, and the next two; NULL where only Python computes it
  rg_object *layout, *kind;             // positional and keyword arguments of empty_strided for the output
  const rg_call *call;
  int32_t most_threads;
  int32_t must_be_sound;                // whether an output with NaN or infinity is computed again by Python
  int64_t first_key, first_value;       // how many bytes behind the first number of k and v the kernel reads its first
  const rg_growth *growth;              // NULL: calls with as many keys
} rg_kept_call;

// A function of Python: its arguments are q, k, v and the options, in the order of rg_kept_call. It returns the output; None
// where only Python computes the call; `unknown` where a call of this layout and these options has not been kept.
rg_object *rg_repeat(const rg_python *);
int32_t rg_keep_call(const rg_kept_call *);  // 0, or 1 where it is not kept
void rg_forget_calls(void);
rg_object *rg_class_of(rg_object *);  // a new reference to the class of an object, read as all of this does

#ifdef __cplusplus
}
#endif
