"""XLA's binary form of modules: HloModuleProto, HloProto and HloSnapshot, in protobuf's wire format and its text form.

    schema.py        the messages as data        wire.py, varints.py   bytes <-> records
    text_format.py   text <-> records            reader.py             records -> Module
    writer.py        Module -> records

Shapes, literals and attributes have their own files, each with reader and writer. There is no generated code and no
protobuf package: the schema is one table, and errors give the offset of the wrong byte.
"""
from hloc.proto.files import kind_of, left_out, read_proto, read_text_proto, write_proto, write_text_proto

__all__ = ["kind_of", "left_out", "read_proto", "read_text_proto", "write_proto", "write_text_proto"]
