//! Arbitrary messages, which no kernel would send.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Dialect, Opcode, Operation, Request};
use super::{Frame, decode};

/// Reads all parts of a request.
fn look(request: &Request<'_>) {
    std::hint::black_box(format!("{request:?}"));
    request.context.extensions.security_contexts().for_each(|context| {
        assert!(!context.name.contains(&0));
    });
    match &request.operation {
        Operation::BatchForget(forgets) => {
            std::hint::black_box(forgets.count());
        }
        Operation::Lookup { name } | Operation::Create { name, .. } => {
            assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn bytes_are_requests_or_errors(bytes in vec(any::<u8>(), 0..300), setxattr_ext: bool) {
        let dialect = Dialect { setxattr_ext };
        if let Ok(request) = decode(&bytes, dialect) {
            look(&request);
        }
    }

    /// Valid headers, so that the bodies are decoded.
    #[test]
    fn bodies_are_operations_or_errors(
        opcode in 0_u32..60,
        // Zeros and slashes are the special characters of names.
        body in vec(prop_oneof![any::<u8>(), Just(0), Just(b'/')], 0..300),
        extension_len in 0_u16..12,
        setxattr_ext: bool,
    ) {
        let dialect = Dialect { setxattr_ext };
        let message = super::message(opcode, &super::Bytes(body), extension_len * 8);
        if let Ok(request) = decode(&message, dialect) {
            look(&request);
            prop_assert_eq!(
                Opcode::from_number(opcode).is_none(),
                matches!(request.operation, Operation::Unknown { .. })
            );
        }
    }

    #[test]
    fn parts_are_frames_or_errors(
        header in vec(any::<u8>(), 0..130),
        argument in vec(any::<u8>(), 0..130),
        payload in vec(any::<u8>(), 0..130),
    ) {
        let dialect = Dialect::default();
        if let Ok(frame) = Frame::split(&header, &argument, &payload, dialect)
            && let Ok(request) = Request::decode(&frame, dialect)
        {
            look(&request);
        }
    }
}
