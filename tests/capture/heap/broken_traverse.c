/* Types whose tp_traverse does what CPython's own never do. Compiled by test_broken_traverse.py. */
#include <Python.h>

typedef struct {
    PyObject_HEAD
    PyObject *held;
} Broken;

static PyObject *untracked;

static int
nothing(PyObject *self, visitproc visit, void *arg)
{
    (void)visit(NULL, arg);
    return visit(((Broken *)self)->held, arg);
}

static int
twice(PyObject *self, visitproc visit, void *arg)
{
    (void)visit(((Broken *)self)->held, arg);
    return visit(((Broken *)self)->held, arg);
}

static int
fails(PyObject *self, visitproc visit, void *arg)
{
    (void)visit(((Broken *)self)->held, arg);
    return 7;
}

static int
silent(PyObject *self, visitproc visit, void *arg)
{
    return 0 * (self == arg && visit == NULL);
}

static int
borrows(PyObject *self, visitproc visit, void *arg)
{
    (void)visit(self, arg);
    (void)visit((PyObject *)Py_TYPE(self), arg);
    return visit(untracked, arg);
}

static int
endless(PyObject *self, visitproc visit, void *arg)
{
    for (int k = 0; k < 5000; k++)
        (void)visit(((Broken *)self)->held, arg);
    return -1;
}

static int
circle(PyObject *self, visitproc visit, void *arg)
{
    while (visit(((Broken *)self)->held, arg) == 0)
        ;
    return 1;
}

static PyObject *
broken_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *held;
    if (named != NULL || !PyArg_ParseTuple(args, "O", &held))
        return NULL;
    Broken *self = (Broken *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->held = Py_NewRef(held);
    return (PyObject *)self;
}

static void
broken_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Broken *)self)->held);
    Py_TYPE(self)->tp_free(self);
}

#define TYPE(name)                                                                                                     \
    {                                                                                                                  \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "broken." #name, .tp_basicsize = sizeof(Broken),                      \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_traverse = name, .tp_new = broken_new,                \
        .tp_dealloc = broken_dealloc                                                                                   \
    }

static PyTypeObject types[] = {TYPE(nothing), TYPE(twice),   TYPE(fails), TYPE(silent),
                               TYPE(borrows), TYPE(endless), TYPE(circle)};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "broken", .m_size = -1};

PyMODINIT_FUNC
PyInit_broken(void)
{
    PyObject *made = PyModule_Create(&module);
    untracked = PyTuple_Pack(1, PyBytes_FromStringAndSize(NULL, 1 << 16));
    PyObject_GC_UnTrack(untracked);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        if (PyType_Ready(&types[k]) < 0 || PyModule_AddObjectRef(made, types[k].tp_name + 7, (PyObject *)&types[k]) < 0)
            return NULL;
    return made;
}
