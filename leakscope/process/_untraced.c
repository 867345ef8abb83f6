/* Calls that trace and profile functions do not see.
 *
 * CPython calls the functions of sys.settrace, sys.setprofile, cProfile and, from 3.12 on, sys.monitoring only while the
 * thread's `tracing` is 0. PyThreadState_EnterTracing raises it, PyThreadState_LeaveTracing lowers it (Python/pystate.c).
 * A Python function that called them would itself be traced, so the script calls a C object that wraps the function. It
 * is not a PyCFunction, because profile functions see calls of these.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "not reviewed for free-threaded Python: the Python equivalent is used"
#endif

typedef struct {
    PyObject_HEAD
    PyObject *function, *dict;
    int retrace; /* trace again, within an untraced call */
    vectorcallfunc vectorcall;
} Call;

static PyObject *
call_through(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    /* keep the function alive: it may drop the last reference to this object */
    PyObject *function = Py_NewRef(((Call *)self)->function);
    int untraced = !((Call *)self)->retrace;
    PyThreadState *thread = PyThreadState_Get();
    int retrace = !untraced && thread->tracing > 0;
    if (retrace)
        PyThreadState_LeaveTracing(thread);
    else if (untraced)
        PyThreadState_EnterTracing(thread);
    PyObject *result = PyObject_Vectorcall(function, args, nargsf, names);
    Py_DECREF(function);
    if (retrace)
        PyThreadState_EnterTracing(thread);
    else if (untraced)
        PyThreadState_LeaveTracing(thread);
    return result;
}

static PyObject *
new_call(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"function", "retrace", NULL};
    PyObject *function;
    int retrace = 0;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O|p:Call", names, &function, &retrace))
        return NULL;
    Call *call = (Call *)type->tp_alloc(type, 0);
    if (call != NULL) {
        call->function = Py_NewRef(function);
        call->retrace = retrace;
        call->vectorcall = call_through;
    }
    return (PyObject *)call;
}

static int
traverse(Call *call, visitproc visit, void *arg)
{
    Py_VISIT(call->function);
    Py_VISIT(call->dict);
    return 0;
}

static int
clear(Call *call)
{
    Py_CLEAR(call->dict);
    return 0;
}

static void
dealloc(Call *call)
{
    PyObject_GC_UnTrack(call);
    Py_XDECREF(call->function);
    Py_XDECREF(call->dict);
    Py_TYPE(call)->tp_free((PyObject *)call);
}

static PyObject *
bind(PyObject *self, PyObject *to, PyObject *Py_UNUSED(owner))
{
    return to == NULL || to == Py_None ? Py_NewRef(self) : PyMethod_New(self, to);
}

/* Attributes that the wrapper lacks, such as __name__, are those of the function. */
static PyObject *
attribute(PyObject *self, PyObject *name)
{
    PyObject *own = PyObject_GenericGetAttr(self, name);
    if (own != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return own;
    PyErr_Clear();
    return PyObject_GetAttr(((Call *)self)->function, name);
}

static PyMemberDef members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Call, function), READONLY, "The function."},
    {NULL},
};

static PyGetSetDef getters[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "leakscope.process._untraced.Call",
    .tp_doc = "Call(function, retrace=False): the same function, called unseen by trace and profile functions.",
    .tp_basicsize = sizeof(Call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_call,
    .tp_dealloc = (destructor)dealloc,
    .tp_traverse = (traverseproc)traverse,
    .tp_clear = (inquiry)clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Call, vectorcall),
    .tp_dictoffset = offsetof(Call, dict),
    .tp_descr_get = bind,
    .tp_getattro = attribute,
    .tp_members = members,
    .tp_getset = getters,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_untraced", .m_doc = "Calls that trace and profile functions do not see.", .m_size = -1};

PyMODINIT_FUNC
PyInit__untraced(void)
{
    if (PyType_Ready(&CallType) < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddObjectRef(made, "Call", (PyObject *)&CallType) < 0)
        Py_CLEAR(made);
    return made;
}
