/* A call of which no trace or profile function hears anything.
 *
 * CPython calls neither sys.settrace's, sys.setprofile's and cProfile's functions nor, from 3.12 on, sys.monitoring's while
 * a thread's `tracing` is above 0: PyThreadState_EnterTracing raises it, PyThreadState_LeaveTracing lowers it
 * (Python/pystate.c). A function of Python's that did so would be heard itself, when it is called and as the one that takes
 * all the time: so what the script can call is an object of C's around it. It is no PyCFunction, whose calls are heard too.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "an extension that has not been looked over for it would bring the GIL back: the Python part serves"
#endif

typedef struct {
    PyObject_HEAD
    PyObject *function, *dict;
    int heard; /* let the script hear again, within a call that it does not */
    vectorcallfunc vectorcall;
} Call;

static PyObject *
call_through(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    /* all that is needed of the object: the function may take away the last reference to it */
    PyObject *function = Py_NewRef(((Call *)self)->function);
    int untraced = !((Call *)self)->heard;
    PyThreadState *thread = PyThreadState_Get();
    int heard = !untraced && thread->tracing > 0;
    if (heard)
        PyThreadState_LeaveTracing(thread);
    else if (untraced)
        PyThreadState_EnterTracing(thread);
    PyObject *result = PyObject_Vectorcall(function, args, nargsf, names);
    Py_DECREF(function);
    if (heard)
        PyThreadState_EnterTracing(thread);
    else if (untraced)
        PyThreadState_LeaveTracing(thread);
    return result;
}

static PyObject *
new_call(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"function", "heard", NULL};
    PyObject *function;
    int heard = 0;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O|p:Call", names, &function, &heard))
        return NULL;
    Call *call = (Call *)type->tp_alloc(type, 0);
    if (call != NULL) {
        call->function = Py_NewRef(function);
        call->heard = heard;
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

/* What it does not have itself, its name above all, is the function's. */
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
    .tp_doc = "Call(function, heard=False): the same function, of whose call no trace or profile function hears.",
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
    PyModuleDef_HEAD_INIT, .m_name = "_untraced", .m_doc = "Calls that nobody hears of.", .m_size = -1};

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
