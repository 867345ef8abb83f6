/* Blocks that switch state of the process and switch it back whatever interrupts them.
 *
 * A signal handler of the script's may raise wherever the interpreter checks for signals: when a Python function begins,
 * after a call, at a jump backwards (CPython Python/ceval.c, eval_breaker). A context manager that is written in Python
 * can be interrupted between `__exit__` being called and its first instruction, and then nothing is restored. C is not
 * interrupted: what is called from here may be, and is called again until it has come to its end.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "an extension that was not reviewed for it would enable the GIL again: the Python part is used instead"
#endif

/* How often `leave` is tried. One exception interrupts one try; a handler that raises at every check is no use to anybody. */
#define MOST_TRIES 64

typedef struct {
    PyObject_HEAD
    PyObject *enter, *leave;
} Block;

/* Exception that is set, normalized, with its traceback; NULL for none. It is cleared. */
static PyObject *
taken_error(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (type == NULL)
        return NULL;
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL)
        PyException_SetTraceback(value, trace);
    Py_DECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* Set an exception again; steals it. */
static void
set_error(PyObject *error)
{
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
}

/* Call `leave`, with `argument` if that is not NULL, until it has come to its end. 0, or -1 with the first exception that
 * interrupted it. */
static int
leave_surely(PyObject *leave, PyObject *argument)
{
    PyObject *before = taken_error(), *first = NULL;
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        PyObject *done = argument == NULL ? PyObject_CallNoArgs(leave) : PyObject_CallOneArg(leave, argument);
        if (done != NULL) {
            Py_DECREF(done);
            break;
        }
        PyObject *error = taken_error();
        if (first == NULL)
            first = error;
        else
            Py_XDECREF(error);
    }
    if (first == NULL) {
        if (before != NULL)
            set_error(before);
        return before == NULL ? 0 : -1;
    }
    if (before != NULL) {
        if (before != first)
            PyException_SetContext(first, before); /* steals it */
        else
            Py_DECREF(before);
    }
    set_error(first);
    return -1;
}

static PyObject *
block_enter(Block *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *value = PyObject_CallNoArgs(self->enter);
    if (value == NULL)
        leave_surely(self->leave, NULL);
    return value;
}

static PyObject *
block_exit(Block *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    if (leave_surely(self->leave, NULL) < 0)
        return NULL;
    Py_RETURN_FALSE;
}

static PyObject *
block_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"enter", "leave", NULL};
    PyObject *enter, *leave;
    if (!PyArg_ParseTupleAndKeywords(args, named, "OO:Block", names, &enter, &leave))
        return NULL;
    Block *self = (Block *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->enter = Py_NewRef(enter);
        self->leave = Py_NewRef(leave);
    }
    return (PyObject *)self;
}

static int
block_traverse(Block *self, visitproc visit, void *arg)
{
    Py_VISIT(self->enter);
    Py_VISIT(self->leave);
    return 0;
}

static int
block_clear(Block *self)
{
    Py_CLEAR(self->enter);
    Py_CLEAR(self->leave);
    return 0;
}

static void
block_dealloc(Block *self)
{
    PyObject_GC_UnTrack(self);
    block_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef block_methods[] = {
    {"__enter__", (PyCFunction)block_enter, METH_NOARGS, "Call `enter`; where it raises, `leave` is called."},
    {"__exit__", (PyCFunction)(void (*)(void))block_exit, METH_FASTCALL, "Call `leave` until it has come to its end."},
    {NULL},
};

static PyTypeObject BlockType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "leakscope._shield.Block",
    .tp_doc = "Block(enter, leave): a context manager whose `leave` always comes to its end.",
    .tp_basicsize = sizeof(Block),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = block_new,
    .tp_dealloc = (destructor)block_dealloc,
    .tp_traverse = (traverseproc)block_traverse,
    .tp_clear = (inquiry)block_clear,
    .tp_methods = block_methods,
};

/* A generator as a context manager: contextlib's, without an instruction of Python's around the generator. */

typedef struct {
    PyObject_HEAD
    PyObject *generator;
} Generated;

static PyObject *
generated_enter(Generated *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *value = Py_TYPE(self->generator)->tp_iternext(self->generator);
    if (value == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "generator didn't yield");
    return value;
}

/* Whether the exception that is set is the one that was thrown in, or what PEP 479 makes of a StopIteration. */
static int
is_thrown(PyObject *error, PyObject *thrown)
{
    if (error == thrown)
        return 1;
    if (!PyErr_GivenExceptionMatches(error, PyExc_RuntimeError) || !PyErr_GivenExceptionMatches(thrown, PyExc_StopIteration))
        return 0;
    PyObject *cause = PyException_GetCause(error);
    Py_XDECREF(cause);
    return cause == thrown;
}

static PyObject *
generated_exit(Generated *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "__exit__() takes 3 arguments");
        return NULL;
    }
    if (args[0] == Py_None) {
        PyObject *more = Py_TYPE(self->generator)->tp_iternext(self->generator);
        if (more != NULL) {
            Py_DECREF(more);
            PyErr_SetString(PyExc_RuntimeError, "generator didn't stop");
            return NULL;
        }
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_StopIteration))
                return NULL;
            PyErr_Clear();
        }
        Py_RETURN_FALSE;
    }
    PyObject *thrown = args[1] == Py_None ? PyObject_CallNoArgs(args[0]) : Py_NewRef(args[1]);
    if (thrown == NULL)
        return NULL;
    PyObject *more = PyObject_CallMethod(self->generator, "throw", "O", thrown);
    if (more != NULL) {
        Py_DECREF(more);
        Py_DECREF(thrown);
        PyErr_SetString(PyExc_RuntimeError, "generator didn't stop after throw()");
        return NULL;
    }
    PyObject *error = taken_error();
    if (error != NULL && is_thrown(error, thrown)) { /* the `with` statement raises it on, with the traceback it has */
        PyException_SetTraceback(thrown, args[2]);
        Py_DECREF(error);
        Py_DECREF(thrown);
        Py_RETURN_FALSE;
    }
    Py_DECREF(thrown);
    if (error == NULL || PyErr_GivenExceptionMatches(error, PyExc_StopIteration)) {
        Py_XDECREF(error);
        Py_RETURN_TRUE;
    }
    set_error(error);
    return NULL;
}

static PyObject *
generated_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"generator", NULL};
    PyObject *generator;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!:Generated", names, &PyGen_Type, &generator))
        return NULL;
    Generated *self = (Generated *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->generator = Py_NewRef(generator);
    return (PyObject *)self;
}

static int
generated_traverse(Generated *self, visitproc visit, void *arg)
{
    Py_VISIT(self->generator);
    return 0;
}

static int
generated_clear(Generated *self)
{
    Py_CLEAR(self->generator);
    return 0;
}

static void
generated_dealloc(Generated *self)
{
    PyObject_GC_UnTrack(self);
    generated_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef generated_methods[] = {
    {"__enter__", (PyCFunction)generated_enter, METH_NOARGS, "Run the generator up to its `yield`."},
    {"__exit__", (PyCFunction)(void (*)(void))generated_exit, METH_FASTCALL, "Run the generator to its end."},
    {NULL},
};

static PyTypeObject GeneratedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "leakscope._shield.Generated",
    .tp_doc = "Generated(generator): the context manager of a generator that yields once.",
    .tp_basicsize = sizeof(Generated),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = generated_new,
    .tp_dealloc = (destructor)generated_dealloc,
    .tp_traverse = (traverseproc)generated_traverse,
    .tp_clear = (inquiry)generated_clear,
    .tp_methods = generated_methods,
};

/* A call that automatic gc does not notice: nothing is collected meanwhile, and the count of young objects is put back. */

typedef struct {
    PyObject_HEAD
    PyObject *function, *count, *restore;
    vectorcallfunc vectorcall;
} GcNeutral;

static PyObject *
gc_neutral_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    GcNeutral *self = (GcNeutral *)object;
    Py_INCREF(self);
    int collecting = PyGC_Disable();
    PyObject *count = PyObject_CallNoArgs(self->count), *result = NULL;
    if (count != NULL) {
        result = PyObject_Vectorcall(self->function, args, nargsf, names);
        if (leave_surely(self->restore, count) < 0)
            Py_CLEAR(result);
        Py_DECREF(count);
    }
    if (collecting)
        PyGC_Enable();
    Py_DECREF(self);
    return result;
}

static PyObject *
gc_neutral_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"function", "count", "restore", NULL};
    PyObject *function, *count, *restore;
    if (!PyArg_ParseTupleAndKeywords(args, named, "OOO:GcNeutral", names, &function, &count, &restore))
        return NULL;
    GcNeutral *self = (GcNeutral *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->function = Py_NewRef(function);
        self->count = Py_NewRef(count);
        self->restore = Py_NewRef(restore);
        self->vectorcall = gc_neutral_call;
    }
    return (PyObject *)self;
}

static int
gc_neutral_traverse(GcNeutral *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    Py_VISIT(self->count);
    Py_VISIT(self->restore);
    return 0;
}

static int
gc_neutral_clear(GcNeutral *self)
{
    Py_CLEAR(self->function);
    Py_CLEAR(self->count);
    Py_CLEAR(self->restore);
    return 0;
}

static void
gc_neutral_dealloc(GcNeutral *self)
{
    PyObject_GC_UnTrack(self);
    gc_neutral_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef gc_neutral_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(GcNeutral, function), READONLY, "The function."},
    {NULL},
};

static PyTypeObject GcNeutralType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "leakscope._shield.GcNeutral",
    .tp_doc = "GcNeutral(function, count, restore): the same function, of which gc's count of young objects shows nothing.",
    .tp_basicsize = sizeof(GcNeutral),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = gc_neutral_new,
    .tp_dealloc = (destructor)gc_neutral_dealloc,
    .tp_traverse = (traverseproc)gc_neutral_traverse,
    .tp_clear = (inquiry)gc_neutral_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(GcNeutral, vectorcall),
    .tp_members = gc_neutral_members,
};

/* A method that always ends with another one, as `__exit__` has to. */

typedef struct {
    PyObject_HEAD
    PyObject *function, *leave, *dict;
    vectorcallfunc vectorcall;
} Method;

static PyObject *
method_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Method *self = (Method *)object;
    if (PyVectorcall_NARGS(nargsf) < 1) {
        PyErr_SetString(PyExc_TypeError, "a method needs its object");
        return NULL;
    }
    PyObject *owner = Py_NewRef(args[0]);
    Py_INCREF(self);
    PyObject *result = PyObject_Vectorcall(self->function, args, nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET, names);
    if (leave_surely(self->leave, owner) < 0)
        Py_CLEAR(result);
    Py_DECREF(owner);
    Py_DECREF(self);
    return result;
}

static PyObject *
method_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"function", "leave", NULL};
    PyObject *function, *leave;
    if (!PyArg_ParseTupleAndKeywords(args, named, "OO:Method", names, &function, &leave))
        return NULL;
    Method *self = (Method *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->function = Py_NewRef(function);
        self->leave = Py_NewRef(leave);
        self->vectorcall = method_call;
    }
    return (PyObject *)self;
}

static PyObject *
method_bind(PyObject *self, PyObject *to, PyObject *Py_UNUSED(owner))
{
    return to == NULL || to == Py_None ? Py_NewRef(self) : PyMethod_New(self, to);
}

static int
method_traverse(Method *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    Py_VISIT(self->leave);
    Py_VISIT(self->dict);
    return 0;
}

static int
method_clear(Method *self)
{
    Py_CLEAR(self->function);
    Py_CLEAR(self->leave);
    Py_CLEAR(self->dict);
    return 0;
}

static void
method_dealloc(Method *self)
{
    PyObject_GC_UnTrack(self);
    method_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef method_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Method, function), READONLY, "The function."},
    {NULL},
};

static PyGetSetDef method_getters[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyTypeObject MethodType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "leakscope._shield.Method",
    .tp_doc = "Method(function, leave): the function as a method after which `leave(self)` comes to its end.",
    .tp_basicsize = sizeof(Method),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = method_new,
    .tp_dealloc = (destructor)method_dealloc,
    .tp_traverse = (traverseproc)method_traverse,
    .tp_clear = (inquiry)method_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Method, vectorcall),
    .tp_dictoffset = offsetof(Method, dict),
    .tp_descr_get = method_bind,
    .tp_members = method_members,
    .tp_getset = method_getters,
};

/* What a callback raises where Python would print and drop it is raised a little later, in the main thread's own code. */

static int
raise_now(void *error)
{
    set_error((PyObject *)error);
    return -1;
}

typedef struct {
    PyObject_HEAD
    PyObject *function;
    vectorcallfunc vectorcall;
} Later;

static PyObject *
later_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    PyObject *function = Py_NewRef(((Later *)self)->function);
    PyObject *result = PyObject_Vectorcall(function, args, nargsf, names);
    Py_DECREF(function);
    if (result != NULL)
        return result;
    PyObject *error = taken_error();
    if (Py_AddPendingCall(raise_now, error) < 0) { /* 32 wait already */
        set_error(error);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
later_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"function", NULL};
    PyObject *function;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O:Later", names, &function))
        return NULL;
    Later *self = (Later *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->function = Py_NewRef(function);
        self->vectorcall = later_call;
    }
    return (PyObject *)self;
}

static int
later_traverse(Later *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    return 0;
}

static int
later_clear(Later *self)
{
    Py_CLEAR(self->function);
    return 0;
}

static void
later_dealloc(Later *self)
{
    PyObject_GC_UnTrack(self);
    later_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef later_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Later, function), READONLY, "The function."},
    {NULL},
};

static PyTypeObject LaterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "leakscope._shield.Later",
    .tp_doc = "Later(function): the same callback; what it raises is raised by the main thread's next instructions.",
    .tp_basicsize = sizeof(Later),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = later_new,
    .tp_dealloc = (destructor)later_dealloc,
    .tp_traverse = (traverseproc)later_traverse,
    .tp_clear = (inquiry)later_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Later, vectorcall),
    .tp_members = later_members,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_shield", .m_doc = "State that is switched back whatever interrupts.", .m_size = -1};

PyMODINIT_FUNC
PyInit__shield(void)
{
    PyTypeObject *types[] = {&BlockType, &GeneratedType, &GcNeutralType, &MethodType, &LaterType};
    PyObject *made = PyModule_Create(&module);
    for (size_t k = 0; made != NULL && k < sizeof types / sizeof *types; k++)
        if (PyModule_AddType(made, types[k]) < 0)
            Py_CLEAR(made);
    return made;
}
