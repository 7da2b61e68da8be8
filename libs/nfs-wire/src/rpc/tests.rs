use super::*;

fn call(rpc_version: u32, groups: u32) -> Vec<u8> {
    let mut body = Writer::default();
    body.u32(0);
    body.opaque(b"host");
    body.u32(1000);
    body.u32(100);
    body.u32(groups);
    (0..groups).for_each(|group| body.u32(group));
    let mut w = Writer::default();
    [7, CALL, rpc_version, 100_003, 3, 1, AUTH_SYS].into_iter().for_each(|v| w.u32(v));
    w.opaque(body.bytes());
    w.u32(AUTH_NONE);
    w.u32(0);
    w.fixed(b"args");
    w.into_bytes()
}

#[test]
fn a_call_names_its_caller_and_procedure() {
    let message = call(2, 2);
    let call = Call::decode(&message).expect("a call");
    assert_eq!((call.xid, call.program, call.version, call.procedure), (7, 100_003, 3, 1));
    assert_eq!(call.credentials, Credentials::Sys { uid: 1000, gid: 100, groups: vec![0, 1] });
    assert_eq!(call.arguments, b"args");
}

#[test]
fn errors_are_distinguished() {
    assert_eq!(Call::decode(&call(3, 0)).expect_err("bad"), BadCall::RpcVersion { xid: 7 });
    assert_eq!(Call::decode(&call(2, 17)).expect_err("bad"), BadCall::Credentials { xid: 7 });
    let mut a_reply = call(2, 0);
    a_reply[7] = REPLY as u8;
    assert!(matches!(Call::decode(&a_reply), Err(BadCall::NoCall(Malformed::Discriminant(1)))));
    let message = call(2, 16);
    for len in 0..message.len() - 4 {
        assert!(Call::decode(&message[..len]).is_err(), "{len} bytes are no call");
    }
}

#[test]
fn replies_have_the_heads_of_the_standard() {
    let words = |verdict| {
        let bytes = reply(7, verdict).into_bytes();
        let (words, rest) = bytes[record::HEADER_BYTES..].as_chunks::<4>();
        assert!(rest.is_empty());
        words.iter().map(|word| u32::from_be_bytes(*word)).collect::<Vec<_>>()
    };
    assert_eq!(words(Verdict::Success), [7, 1, 0, 0, 0, 0]);
    assert_eq!(words(Verdict::NoVersion(3, 3)), [7, 1, 0, 0, 0, 2, 3, 3]);
    assert_eq!(words(Verdict::GarbageArguments), [7, 1, 0, 0, 0, 4]);
    assert_eq!(words(Verdict::RpcMismatch), [7, 1, 1, 0, 2, 2]);
    assert_eq!(words(Verdict::TooWeak), [7, 1, 1, 1, 5]);
}
